"""Local mixers: each against its formula, against C++ through safetensors, with padding, steps, gradients, and in every
place of a block."""

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from context_pool_cases import scattered
from contextpool.models import LanguageModel
from contextpool.nn import (
    BlockCache,
    ContextPool1d,
    ContextPool2d,
    Mixer,
    MixerCache,
    MixerOptions,
    MixOptions,
    TransformerBlock,
    make_mixer,
    mixer_kinds,
)
from contextpool.nn.mixer import parse_places

D, CONTEXT = 8, 5


def options(kind: str, dims: int = 1, causal: bool = True, **more: Any) -> MixerOptions:
    pool = {"hidden": 5, "groups": 2, **({"reference_length": 20} if dims == 1 else {})}
    return MixerOptions(kind, D, causal, dims, rank=3, context_features=CONTEXT, pool=pool, **more)


def cases(dims: int, causal: bool) -> Iterator[MixerOptions]:
    yield options("canon", dims, causal)
    yield options("dynamic", dims, causal)
    yield options("dynamic", dims, causal, heads=4)
    for residual in ("none", "plain", "scale", "gated"):
        yield options("depthwise", dims, causal, taps=5, residual=residual)
        yield options("context_pool", dims, causal, residual=residual)
        yield options("context_pool", dims, causal, residual=residual, taps=3)


KINDS = ((1, True), (1, False), (2, False))
ALL = pytest.mark.parametrize(
    "o", [o for kind in KINDS for o in cases(*kind)], ids=lambda o: f"{o.kind}-{o.residual}-{o.taps}-{o.heads}-{o.dims}-{o.causal}"
)
CAUSAL = pytest.mark.parametrize("o", list(cases(1, True)), ids=lambda o: f"{o.kind}-{o.residual}-{o.taps}-{o.heads}")


def tokens(o: MixerOptions, features: int, batch: int = 2) -> Tensor:
    shape = (batch, 13, features) if o.dims == 1 else (batch, features, 5, 6)
    return torch.randn(shape, dtype=torch.float64)


def test_cpp_gives_the_same_outputs(tmp_path: Path) -> None:
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    done = subprocess.run([build / "tests" / "contextpool_mixer_tool", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 40
    seen = set()
    for file in files:
        with safe_open(file, "pt") as opened:
            words, held = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        numbers = ("features", "dims", "taps", "rank", "heads", "context_features")
        pool = {k[5:]: int(v) for k, v in words.items() if k.startswith("pool.") and v != "0"}
        o = MixerOptions(
            words["kind"], causal=words["causal"] == "1", residual=words["residual"], pool=pool,
            **{name: int(words[name]) for name in numbers},
        )  # fmt: skip
        mixer = make_mixer(o)
        weights = {name[6:]: value for name, value in held.items() if name.startswith("mixer.")}
        mixer.load_state_dict(weights)
        assert [name for name, _ in mixer.named_parameters()] or o.kind == "none"
        y = mixer(held["x"], mask=held["mask"], context=held["context"])
        torch.testing.assert_close(y, held["y"], rtol=1e-5, atol=1e-5, msg=lambda m, f=file: f"{f.stem}\n{m}")
        seen.add(o.kind)
    assert seen == set(mixer_kinds())


@pytest.mark.parametrize("causal", (True, False))
@pytest.mark.parametrize("heads", (0, 4))
def test_dynamic_is_its_formula(causal: bool, heads: int) -> None:
    """Token by token, with the matrices as the paper writes them."""
    mixer = scattered(make_mixer(options("dynamic", 1, causal, heads=heads)))
    taps, x, h = (4 if causal else 3), torch.randn(1, 9, D).double(), torch.randn(1, 9, CONTEXT).double()
    p = dict(mixer.named_parameters())
    if heads:
        v = (h @ p["coefficients.weight"].T).view(1, 9, taps, heads, 1).expand(-1, -1, -1, -1, D // heads).flatten(3)
    else:
        v = (h @ p["coefficients.down.weight"].T @ p["coefficients.up.weight"].T).view(1, 9, taps, D)
    expected = x.clone()
    for i in range(9):
        for k in range(taps):
            j = i - (taps - 1 if causal else taps // 2) + k
            if 0 <= j < 9:
                expected[0, i] += (p["weight"][:, 0, k] + v[0, i, k]) * x[0, j]
    torch.testing.assert_close(mixer(x, context=h), expected)


@pytest.mark.parametrize("causal", (True, False))
def test_dynamic_rows_by_the_operator_are_those_by_shifted_products(causal: bool) -> None:
    """What the CPU takes and what a GPU takes, forward, backward and in steps."""
    torch.manual_seed(6)
    o = MixerOptions("dynamic", 37, causal, context_features=CONTEXT)
    mixer = make_mixer(o).to(torch.float64)
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.4)
    x = torch.randn(3, 50, 37, dtype=torch.float64, requires_grad=True)
    h = torch.randn(3, 50, CONTEXT, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(3, 50, 37, dtype=torch.float64)
    inputs = (x, h, *mixer.parameters())
    results = []
    for ours in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not ours:
                patch.setattr(type(mixer), "_has_operator", lambda self, x: False)
            y = mixer(x, context=h)
            with torch.no_grad():
                cache = MixerCache()
                parts = [(0, 1), (1, 3), (3, 50)] if causal else []
                steps = [mixer.step(x[:, i:j], cache, context=h[:, i:j]) for i, j in parts]
            results.append([y, *torch.autograd.grad(y, inputs, dy), *steps])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dims", (1, 2))
def test_depthwise_and_canon_are_torchs_convolutions(dims: int) -> None:
    o = options("depthwise", dims, False, taps=3)
    mixer, x = scattered(make_mixer(o)), tokens(o, D)
    if dims == 1:
        expected = F.conv1d(x.transpose(1, 2), mixer.weight, mixer.bias, padding=1, groups=D).transpose(1, 2)
    else:
        expected = F.conv2d(x, mixer.weight, mixer.bias, padding=1, groups=D)
    torch.testing.assert_close(mixer(x), expected)
    canon = scattered(make_mixer(options("canon", dims, False)))
    canon.load_state_dict({"weight": mixer.weight})
    bias = mixer.bias if dims == 1 else mixer.bias.view(-1, 1, 1)
    torch.testing.assert_close(canon(x), x + expected - bias)


@ALL
def test_gradients_are_those_of_the_values(o: MixerOptions) -> None:
    torch.manual_seed(3)
    mixer = scattered(make_mixer(o))
    shape = (1, 5, D) if o.dims == 1 else (1, D, 3, 2)
    other = (1, 5, CONTEXT) if o.dims == 1 else (1, CONTEXT, 3, 2)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    h = torch.randn(other, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in mixer.named_parameters()]

    def run(x: Tensor, h: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, values)), (x,), {"context": h})

    parameters = [p.detach().clone().requires_grad_() for p in mixer.parameters()]
    torch.autograd.gradcheck(run, (x, h, *parameters), fast_mode=True)


@ALL
def test_padding_reaches_nothing(o: MixerOptions) -> None:
    mixer, x, h = scattered(make_mixer(o)), tokens(o, D), tokens(o, CONTEXT)
    mask = torch.ones(x.shape[0], *(x.shape[1:2] if o.dims == 1 else x.shape[2:]), dtype=torch.bool)
    mask[1, 3:] = False
    cut = (slice(1, None), slice(0, 3)) if o.dims == 1 else (slice(1, None), slice(None), slice(0, 3))
    alone = mixer(x[cut], context=h[cut])
    padded = ~mask.unsqueeze(-1 if o.dims == 1 else 1)
    x, h = x.masked_fill(padded, torch.nan).requires_grad_(), h.masked_fill(padded, torch.nan)
    y = mixer(x, mask=mask, context=h)[cut]
    torch.testing.assert_close(y, alone)
    y.square().sum().backward()
    assert x.grad.masked_select(padded).eq(0).all()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@CAUSAL
def test_steps_equal_the_whole(o: MixerOptions) -> None:
    """Left-padded rows, with a context of their own; then after a crop and with rows chosen."""
    torch.manual_seed(5)
    mixer = scattered(make_mixer(o))
    x, h = torch.randn(3, 20, D).double(), torch.randn(3, 20, CONTEXT).double()
    mask = torch.arange(20) >= torch.tensor([0, 7, 18]).unsqueeze(1)
    with torch.no_grad():
        whole, cache, parts, first = mixer(x, mask=mask, context=h), MixerCache(), [], 0
        for count in (6, 1, 2, 1, 10):
            part = slice(first, first + count)
            parts.append(mixer.step(x[:, part], cache, mask[:, part], context=h[:, part]))
            first += count
        torch.testing.assert_close(torch.cat(parts, 1)[mask], whole[mask])
        cache.crop(15)
        rows = torch.tensor([2, 0, 0])
        cache.reorder(rows)
        rest = mixer.step(x[rows, 15:], cache, mask[rows, 15:], context=h[rows, 15:])
        torch.testing.assert_close(rest[mask[rows, 15:]], whole[rows, 15:][mask[rows, 15:]])


def test_mixers_keep_their_start_in_a_model_that_draws_its_own() -> None:
    base = {"vocabulary": 30, "layers": 2, "features": 64, "heads": 2, "feedforward": 96, "length": 64}
    model = LanguageModel.from_options({**base, "mix": "AC=dynamic,O=context_pool,D=canon", "mixer_residual": "gated"})
    for block in model.blocks:
        dynamic, pool, canon = block.mixer("A"), block.mixer("O"), block.mixer("D")
        assert dynamic.coefficients.up.weight.eq(0).all() and dynamic.weight.abs().max() <= 0.5
        assert dynamic.weight.std() > 0.2 and canon.weight.std() > 0.2 and canon.weight.abs().max() <= 0.5
        assert pool.scale.abs().max() <= 0.5 and pool.scale.std() > 0.2 and pool.gate.up.weight.eq(0).all()
        assert 0.015 < pool.predictor.conv1.weight.std() < 0.025
        sigma = pool(torch.randn(1, 9, 64), return_windows=True)[1].sigma
        torch.testing.assert_close(sigma, torch.full_like(sigma, 4.0))


PLACES = ("A=canon", "B=dynamic", "O=dynamic", "D=dynamic", "AC=dynamic", "ABCD=canon", "AC=canon,O=context_pool")


@pytest.mark.parametrize("places", PLACES)
def test_a_block_has_its_mixers_in_their_places(places: str) -> None:
    mix = MixOptions(places, residual="gated", rank=3, pool_taps=3)
    block = scattered(TransformerBlock(D, 2, 12, causal=True, pool={"reference_length": 20, "hidden": 5}, mix=mix))
    x = torch.randn(2, 9, D).double()

    def at(place: str, value: Tensor, context: Tensor | None = None) -> Tensor:
        mixer = block.mixer(place)
        return value if mixer is None else mixer(value, context=context)

    h = at("A", block.norm1(x))
    q, k, v = at("B", block.attention.qkv(h), h).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    middle = x + at("O", block.attention.out(attended), h)
    g = at("C", block.norm2(middle))
    expected = at("E", middle + block.feedforward.down(F.gelu(at("D", block.feedforward.up(g), g))))
    torch.testing.assert_close(block(x), expected)
    with torch.no_grad():
        cache = BlockCache()
        steps = torch.cat([block.step(x[:, i : i + 3], cache) for i in range(0, 9, 3)], 1)
    torch.testing.assert_close(steps, expected)
    prefix = "mixers." if len(block.places) > 1 else next(iter(block.places.values())) + "."
    assert any(name.startswith(prefix) for name, _ in block.named_parameters())


def test_a_block_is_unchanged_where_it_has_one_mixer() -> None:
    for placement, place in (("before_attention", "A"), ("after_attention", "O"), ("after_block", "E")):
        pool = {"reference_length": 20, "hidden": 5}
        torch.manual_seed(1)
        old = TransformerBlock(D, 2, 12, causal=True, mixer="context_pool", placement=placement, pool=pool)
        torch.manual_seed(1)
        new = TransformerBlock(D, 2, 12, causal=True, pool=pool, mix=MixOptions(f"{place}=context_pool"))
        assert list(old.state_dict()) == list(new.state_dict())
        x = torch.randn(2, 9, D)
        assert torch.equal(old(x), new(x)) and isinstance(new.context_pool, ContextPool1d)


def test_every_mixer_is_a_mixer() -> None:
    assert isinstance(make_mixer(MixerOptions("context_pool", D)), ContextPool1d)
    assert isinstance(make_mixer(MixerOptions("context_pool", D, dims=2)), ContextPool2d)
    for kind in mixer_kinds():
        mixer = make_mixer(MixerOptions(kind, D))
        assert isinstance(mixer, Mixer) and isinstance(mixer, nn.Module)
        x = torch.randn(2, 9, D)
        y, windows = mixer.forward_with_windows(x)
        torch.testing.assert_close(y, mixer(x))
        assert (windows is not None) == (kind == "context_pool")


def test_places_are_read_from_a_text() -> None:
    assert parse_places("test", "C=canon, AB=none,O=context_pool", "ABOCDE") == {"O": "context_pool", "C": "canon"}
    for text, message in {
        "A=cannon": 'did you mean "canon"',
        "X=canon": 'the place "X"',
        "AA=canon": "A twice",
        "canon": "PLACE=MIXER",
        "=canon": "PLACE=MIXER",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse_places("test", text, "ABOCDE")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"kind": "cannon"}, 'did you mean "canon"'),
        ({"kind": "canon", "dims": 2, "causal": True}, "cannot be causal"),
        ({"kind": "canon", "taps": 4}, "must be odd"),
        ({"kind": "canon", "residual": "scale"}, "residual is plain"),
        ({"kind": "depthwise", "residual": "gate"}, 'did you mean "gated"'),
        ({"kind": "dynamic", "heads": 3}, "heads must divide the 8 features"),
        ({"kind": "dynamic", "rank": 0}, "rank must be positive"),
        ({"kind": "dynamic", "features": 0}, "features must be positive"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_mixer(MixerOptions(**{"features": D, **wrong}))


def test_mixers_compile() -> None:
    x = torch.randn(2, 9, D)
    block = TransformerBlock(D, 2, 12, causal=True, mix=MixOptions("A=canon,B=dynamic,D=dynamic"))
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), block(x))
