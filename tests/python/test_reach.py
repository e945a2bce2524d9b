"""Attention that does not see the whole row: against its formula over all pairs in float64, with steps, padding and
causality to the bit; the gradient of spans; the memory of a long row; and the same in a language model."""

import math
import subprocess
import sys

import pytest
import torch

from contextpool.models import LanguageModel, LanguageModelCache, LanguageModelOptions
from contextpool.nn import Attention, AttentionCache, Positions, Reach

D, HEADS = 24, 4
WINDOWS = [
    Reach("window", window=1),
    Reach("window", window=7),
    Reach("window", window=40, dilation=1, dilated_heads=2),
    Reach("window", window=5, dilation=3, dilated_heads=4),
    Reach("window", window=6, dilation=2, dilated_heads=1, row=20, window_doublings=3),
    Reach("window", window=500, dilation=2, dilated_heads=1),
]
SPANS = [Reach("adaptive_span", span_limit=limit) for limit in (20, 90, 1000)]
REACHES = WINDOWS + SPANS
TOKENS = 210


def make(reach: Reach, dtype: torch.dtype = torch.float64) -> Attention:
    torch.manual_seed(3)
    attention = Attention(D, HEADS, causal=True, reach=reach).to(dtype)
    if attention.span is not None:
        with torch.no_grad():
            attention.span.copy_(torch.tensor([0.0, 0.3, 0.871, 1.0]))
    return attention


def turns(x: torch.Tensor, first: int = 0) -> torch.Tensor:
    return Positions("rotary", D, HEADS).rotation(x, first)


def share(attention: Attention, tokens: int) -> torch.Tensor:
    """What a weight is multiplied by, [heads, queries, keys]: the documentation, pair by pair."""
    r, at = attention.reach, torch.arange(tokens)
    distance = at.unsqueeze(1) - at
    if r.kind == "adaptive_span":
        z = attention.span.clamp(0, 1)[:, None, None]
        m = ((32 + z * r.span_limit - distance) / 32).clamp(0, 1)
        return m * ((distance >= 0) & (distance < r.span_limit))
    window = torch.full((tokens, 1), r.window)
    for doubling in range(r.window_doublings):
        window[r.row * 2**doubling :] *= 2
    step = torch.ones(HEADS, 1, 1, dtype=torch.long)
    step[HEADS - r.dilated_heads :] += r.dilation
    return ((distance >= 0) & (distance % step == 0) & (distance // step < window)).double()


def formula(attention: Attention, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    q, k, v = attention._project(x, rotation, None)
    weight = (q @ k.transpose(-1, -2) / math.sqrt(D // HEADS)).exp() * share(attention, x.shape[1])
    return attention.out((weight / weight.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("tokens", (1, 33, TOKENS))
@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_attention_is_its_formula(reach: Reach, tokens: int) -> None:
    attention = make(reach)
    x = torch.randn(2, tokens, D, dtype=torch.float64, requires_grad=True)
    y, expected = attention(x, turns(x)), formula(attention, x, turns(x))
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    inputs = [x, *(p for name, p in attention.named_parameters() if name != "span")]
    weight = torch.randn_like(y)
    for got, want in zip(
        torch.autograd.grad(y, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_rows_and_batches_of_nothing(reach: Reach) -> None:
    for shape in ((2, 0, D), (0, 50, D)):
        x, mask = torch.randn(shape, dtype=torch.float64), torch.ones(shape[:2], dtype=torch.bool)
        assert make(reach)(x).shape == make(reach)(x, mask=mask).shape == shape


@torch.no_grad()
@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_steps_equal_the_whole_and_leak_nothing(reach: Reach) -> None:
    attention = make(reach, torch.float32)
    x = torch.randn(2, TOKENS, D)
    whole, cache, parts, first = attention(x, turns(x)), AttentionCache(), [], 0
    for count in (1, 40, 1, 25, 96, 1, 46):
        part = x[:, first : first + count]
        parts.append(attention.step(part, cache, turns(part, first)))
        first += count
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=5e-6)
    for t in (1, 64, 130, TOKENS - 1):
        other = x.clone()
        other[:, t:] = 5 * torch.randn(2, TOKENS - t, D)
        assert torch.equal(attention(other, turns(x))[:, :t], whole[:, :t])


@pytest.mark.parametrize("reach", REACHES, ids=str)
def test_padding_is_seen_by_no_one(reach: Reach) -> None:
    attention = make(reach)
    x, lengths = torch.randn(3, TOKENS, D, dtype=torch.float64), torch.tensor([TOKENS, 70, 1])
    mask = torch.arange(TOKENS) < lengths.unsqueeze(1)
    alone = torch.cat([attention(x[b : b + 1, :n], turns(x[:, :n]))[0] for b, n in enumerate(lengths.tolist())])
    x[~mask] = torch.nan
    x.requires_grad_()
    y = attention(x, turns(x), mask)[mask]
    torch.testing.assert_close(y, alone, rtol=0, atol=1e-12)
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in attention.parameters())
    assert (x.grad[~mask] == 0).all()


def test_the_gradient_of_a_span_is_its_slope() -> None:
    attention = make(Reach("adaptive_span", span_limit=60))
    x = torch.randn(1, 90, D, dtype=torch.float64)
    weight = torch.randn_like(x)

    def loss(span: torch.Tensor) -> torch.Tensor:
        return (torch.func.functional_call(attention, {"span": span}, (x, turns(x))) * weight).sum()

    # Where a span is a whole number of tokens, a key stands on a corner of the ramp.
    span = torch.tensor([0.011, 0.311, 0.5171, 0.903], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, span)
    start = torch.zeros(HEADS, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(start), start)
    assert gradient.isfinite().all() and (gradient != 0).all()


@pytest.mark.parametrize("start, far", ((0.0, True), (1.0, False)))
def test_a_span_can_leave_both_ends(start: float, far: bool) -> None:
    """A head that must copy what stands 16 tokens back, where a span of 0 is half faded, grows; one that has no use for
    it shrinks from 1."""
    torch.manual_seed(1)
    options = {"vocabulary": 8, "layers": 1, "features": 16, "heads": 1, "feedforward": 16, "length": 100}
    model = LanguageModel.from_options({**options, "attention": "adaptive_span", "span_limit": 64, "span_loss": 1e-3})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with torch.no_grad():
        model.blocks[0].attention.span.fill_(start)
    for _ in range(60 if far else 10):
        tokens = torch.randint(8, (8, 16)).repeat(1, 7)[:, :100] if far else torch.randint(8, (8, 100))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, 15:-1].flatten(0, 1), tokens[:, 16:].flatten())
        ((0 if far else model.span_loss()) + loss).backward()
        optimizer.step()
        model.clamp_spans()
        assert 0 <= model.blocks[0].attention.span.item() <= 1
    assert model.blocks[0].attention.span.item() > 0.05 if far else model.blocks[0].attention.span.item() < 0.95


def test_the_loss_of_spans_is_their_mean() -> None:
    options = {"layers": 2, "features": 16, "heads": 2, "feedforward": 16, "attention": "adaptive_span"}
    model = LanguageModel.from_options({**options, "span_limit": 200, "span_loss": 0.01})
    assert model.span_loss().item() == 0
    with torch.no_grad():
        model.blocks[0].attention.span.copy_(torch.tensor([0.25, 1.5]))
        model.blocks[1].attention.span.copy_(torch.tensor([0.5, -1.0]))
        model.clamp_spans()
    assert model.span_loss().item() == pytest.approx(0.01 * 200 * (0.25 + 1 + 0.5) / 4)
    assert LanguageModel.from_options({**options, "attention": "full"}).span_loss() is None


LONG = """
import resource, torch
from contextpool.nn import Attention, Reach
attention = Attention(64, 4, causal=True, reach=Reach({reach}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
x = torch.randn(1, 65536, 64, requires_grad=True)
attention(x).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("reach", ("'window', window=64, dilation=1, dilated_heads=1", "'adaptive_span'"))
def test_a_long_row_takes_no_memory_of_all_pairs(reach: str) -> None:
    done = subprocess.run([sys.executable, "-c", LONG.format(reach=reach)], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 65536 * 65536 / 4, "bytes, less than a bool for every fourth pair"


def test_longformers_windows_and_dilations() -> None:
    reaches = [LanguageModelOptions(attention="window").reach(layer) for layer in range(12)]
    assert [r.window for r in reaches] == [32, 64, 64, 128, 256, 512, 512, 1024, 2048, 4096, 4096, 8192]
    assert [r.dilation for r in reaches] == [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    options = LanguageModelOptions(layers=5, window_first=3, window_last=100)
    assert [options.reach(layer).window for layer in range(5)] == [3, 8, 16, 32, 100]
    assert LanguageModelOptions(layers=1).reach(0).window == 32


@torch.no_grad()
@pytest.mark.parametrize("attention", ("window", "adaptive_span"))
def test_models_step_and_leak_nothing(attention: str) -> None:
    torch.manual_seed(5)
    options = {"vocabulary": 30, "layers": 3, "features": 16, "heads": 2, "feedforward": 32, "length": 40}
    limits = {"window_first": 4, "window_last": 32, "window_doublings": 1, "span_limit": 50}
    model = LanguageModel.from_options({**options, **limits, "attention": attention, "mixer": "context_pool"}).eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.3).add_(0 if parameter.dim() > 1 else 0.5)
    tokens = torch.randint(0, 30, (2, 120))
    whole, cache = model(tokens), LanguageModelCache()
    parts = [model.step(part, cache) for part in tokens.split((1, 8, 1, 70, 40), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5 * whole.abs().max().item())
    tokens[:, 63] = (tokens[:, 63] + 7) % 30
    changed = model(tokens)
    assert torch.equal(changed[:, :63], whole[:, :63])
    assert not torch.equal(changed[:, 63], whole[:, 63])


@pytest.mark.parametrize("reach", REACHES[2:4] + SPANS[1:2], ids=str)
def test_reaches_work_under_autocast(reach: Reach) -> None:
    attention = make(reach, torch.float32)
    x = torch.randn(2, 100, D)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        rough = attention(x, turns(x))
    expected = attention(x, turns(x))
    torch.testing.assert_close(rough.float(), expected, rtol=0.1, atol=0.05 * expected.abs().max().item())
    rough.float().sum().backward()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"attention": "windows"}, 'attention is "windows".*did you mean "window"'),
        ({"attention": "window", "dilated_heads": 9}, "dilated_heads must be .* the number of heads, 8, but is 9"),
        ({"attention": "window", "window_doublings": -1}, "window_doublings must be from 0 to 16, but is -1"),
        ({"window_first": 0}, "window_first must be positive, but is 0"),
        ({"window_first": 64, "window_last": 32}, "window_first must be at most window_last, 32, but is 64"),
        ({"span_limit": 0}, "span_limit must be positive, but is 0"),
        ({"span_loss": -1.0}, "span_loss must not be negative, but is -1"),
    ],
)
def test_bad_options_are_named(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words), torch.device("meta"):
        LanguageModel.from_options(options)


def test_a_limited_reach_is_causal() -> None:
    for kind in ("window", "adaptive_span"):
        with pytest.raises(ValueError, match=f'attention "{kind}" must be causal'):
            Attention(D, HEADS, reach=Reach(kind))
