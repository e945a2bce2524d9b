"""Attention, positions, the depthwise control and the transformer block in Python: against torch's own modules and
their formulas, with padding, steps and causality, and under torch.compile."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F

from contextpool.nn import (
    Attention,
    AttentionCache,
    BlockCache,
    Depthwise,
    MixOptions,
    Positions,
    TransformerBlock,
    rotate,
)

D, HEADS = 16, 2
BLOCKS = list(
    itertools.product(("none", "context_pool", "depthwise"), ("after_attention", "after_block", "before_attention"))
)


def make(mixer: str, placement: str, causal: bool, dtype: torch.dtype = torch.float64) -> TransformerBlock:
    """Every parameter random: fresh ones have zeros that would hide mistakes."""
    torch.manual_seed(3)
    pool = {"reference_length": 40 if causal else 0, "hidden": 8}
    block = TransformerBlock(D, HEADS, 40, causal=causal, mixer=mixer, placement=placement, taps=5, pool=pool).to(dtype)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.3)
    return block


def turns(x: torch.Tensor, first: int = 0) -> torch.Tensor:
    return Positions("rotary", D, HEADS).rotation(x, first)


@pytest.mark.parametrize("causal", (False, True))
def test_attention_is_torchs_multihead_attention(causal: bool) -> None:
    ours = Attention(D, HEADS, causal=causal).double()
    peer = torch.nn.MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64)
    names = ("qkv.weight", "in_proj_weight"), ("qkv.bias", "in_proj_bias"), ("out.weight", "out_proj.weight")
    state = ours.state_dict()
    peer.load_state_dict({theirs: state[name] for name, theirs in (*names, ("out.bias", "out_proj.bias"))})
    x = torch.randn(3, 11, D, dtype=torch.float64)
    mask = torch.arange(11) < torch.tensor([11, 4, 1]).unsqueeze(1)
    later = torch.ones(11, 11, dtype=torch.bool).triu(1) if causal else None
    expected = peer(x, x, x, key_padding_mask=~mask, attn_mask=later, need_weights=False)[0]
    torch.testing.assert_close(ours(x, mask=mask)[mask], expected[mask], rtol=0, atol=1e-13)
    expected = peer(x, x, x, attn_mask=later, need_weights=False)[0]
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-13)


def test_attention_steps_equal_the_whole() -> None:
    attention = Attention(D, HEADS, causal=True).double()
    x = torch.randn(2, 30, D, dtype=torch.float64)
    whole, cache, parts, first = attention(x, turns(x)), AttentionCache(), [], 0
    for count in (1, 7, 1, 20, 1):
        part = x[:, first : first + count]
        parts.append(attention.step(part, cache, turns(part, first)))
        first += count
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-13)


def test_rotary_scores_know_distances_only() -> None:
    positions = Positions("rotary", 16, 1)
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64)

    def score(at_q: int, at_k: int) -> torch.Tensor:
        return (rotate(q, positions.rotation(q, at_q)) * rotate(k, positions.rotation(k, at_k))).sum()

    torch.testing.assert_close(score(5009, 5002), score(9, 2), rtol=0, atol=1e-11)
    assert (score(10, 2) - score(9, 2)).abs() > 1e-6
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    as_complex = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    angle = torch.arange(3, 8).outer(10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16))
    expected = torch.view_as_real(as_complex * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(rotate(x, positions.rotation(x, 3)), expected, rtol=0, atol=1e-13)


def test_positions_that_are_added() -> None:
    x = torch.randn(2, 7, 10, dtype=torch.float64)
    angle = torch.arange(4, 11).outer(10000.0 ** (-torch.arange(0, 10, 2, dtype=torch.float64) / 10))
    expected = x.clone()
    expected[..., 0::2] += angle.sin()
    expected[..., 1::2] += angle.cos()
    torch.testing.assert_close(Positions("sinusoidal", 10, 2).add(x, 4), expected, rtol=0, atol=1e-13)
    learned = Positions("learned", 10, 2, length=11).double()
    assert torch.equal(learned.add(x, 4), x + learned.weight[4:])
    with pytest.raises(ValueError, match="12 tokens, but only 11"):
        learned.add(x, 5)


@pytest.mark.parametrize("causal", (False, True))
def test_depthwise_is_a_convolution_of_each_channel(causal: bool) -> None:
    depthwise = Depthwise(3, 5, causal).double()
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    left = 4 if causal else 2
    rows = F.pad(x, (0, 0, left, 4 - left)).unfold(1, 5, 1)  # [2, 9, 3, 5]
    expected = (rows * depthwise.weight[:, 0]).sum(-1) + depthwise.bias
    torch.testing.assert_close(depthwise(x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(("mixer", "placement"), BLOCKS)
def test_block_is_its_formula(mixer: str, placement: str, causal: bool) -> None:
    block = make(mixer, placement, causal)
    x = torch.randn(2, 13, D, dtype=torch.float64, requires_grad=True)
    mix = block.context_pool or block.depthwise or (lambda value: value)

    def attend(value: torch.Tensor) -> torch.Tensor:
        return block.attention(value, turns(x))

    def feedforward(value: torch.Tensor) -> torch.Tensor:
        p = dict(block.feedforward.named_parameters())
        h = F.linear(value, p["up.weight"], p["up.bias"])
        return F.linear(h * 0.5 * (1 + torch.erf(h / 2**0.5)), p["down.weight"], p["down.bias"])

    if placement == "before_attention":
        middle = x + attend(mix(block.norm1(x)))
    else:
        branch = attend(block.norm1(x))
        middle = x + (mix(branch) if placement == "after_attention" else branch)
    expected = middle + feedforward(block.norm2(middle))
    if placement == "after_block":
        expected = mix(expected)
    y, weight = block(x, turns(x)), torch.randn(2, 13, D, dtype=torch.float64)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    inputs = [x, *block.parameters()]
    for got, want in zip(
        torch.autograd.grad(y, inputs, weight), torch.autograd.grad(expected, inputs, weight), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("mixer", "placement"), BLOCKS)
def test_block_steps_equal_the_whole_and_leak_nothing(mixer: str, placement: str) -> None:
    block = make(mixer, placement, True, torch.float32)
    x = torch.randn(2, 41, D)
    with torch.no_grad():
        whole, cache, parts, first = block(x, turns(x)), BlockCache(), [], 0
        for count in (1, 9, 1, 29, 1):
            part = x[:, first : first + count]
            parts.append(block.step(part, cache, turns(part, first)))
            first += count
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-4)
        x[:, 20:] = torch.randn(2, 21, D)
        assert torch.equal(block(x, turns(x))[:, :20], whole[:, :20])


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(("mixer", "placement"), BLOCKS)
def test_block_leaves_padding_alone(mixer: str, placement: str, causal: bool) -> None:
    block = make(mixer, placement, causal)
    x, lengths = torch.randn(3, 9, D, dtype=torch.float64), torch.tensor([9, 4, 1])
    mask = torch.arange(9) < lengths.unsqueeze(1)
    alone = torch.cat([block(x[b : b + 1, :n], turns(x[:, :n]))[0] for b, n in enumerate(lengths.tolist())])
    x[~mask] = torch.nan
    x.requires_grad_()
    y = block(x, turns(x), mask=mask)[mask]
    torch.testing.assert_close(y, alone, rtol=0, atol=1e-12)
    assert torch.equal(block(x, turns(x), lengths=lengths)[mask], y)
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in block.parameters())
    assert (x.grad[~mask] == 0).all()


@pytest.mark.parametrize("mixer", ("none", "context_pool", "depthwise"))
def test_block_copies_and_travels_under_autocast(mixer: str) -> None:
    block = make(mixer, "after_attention", True, torch.float32)
    x = torch.randn(2, 12, D)
    expected = block(x, turns(x))
    assert torch.equal(copy.deepcopy(block)(x, turns(x)), expected)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        rough = block(x, turns(x))
    torch.testing.assert_close(rough.float(), expected, rtol=0.1, atol=0.1 * expected.abs().max().item())


@pytest.mark.skipif(torch.get_default_device().type != "cuda", reason="needs CONTEXTPOOL_TEST_DEVICE=cuda")
def test_mixers_before_products_have_the_type_of_autocast() -> None:
    """On a GPU: torch's norms give float32 there, which a mixer at A or C would move for nothing."""
    block = TransformerBlock(32, 2, 64, causal=True, mix=MixOptions("AC=canon"))
    seen = []
    for place in "AC":
        mixer = block.mixer(place)
        assert mixer is not None
        mixer.register_forward_hook(lambda _module, inputs, output: seen.append((inputs[0].dtype, output.dtype)))
    x = torch.randn(2, 9, 32, requires_grad=True)
    plain = block(x)
    with torch.autocast("cuda", torch.bfloat16):
        y = block(x)
    y.float().sum().backward()
    assert seen == [(torch.float32,) * 2] * 2 + [(torch.bfloat16,) * 2] * 2
    torch.testing.assert_close(y.float(), plain, rtol=0, atol=0.05 * float(plain.detach().abs().max()))
    with torch.autocast("cuda", torch.bfloat16):
        same = torch.compile(TransformerBlock(32, 2, 64), fullgraph=True, backend="aot_eager")(x)
    assert same.dtype == torch.float32


def test_block_compiles() -> None:
    block = make("context_pool", "after_attention", True, torch.float32)
    x = torch.randn(2, 12, D)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, turns(x)), block(x, turns(x)), rtol=1e-5, atol=1e-5)


def test_words_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match='did you mean "context_pool"'):
        TransformerBlock(D, HEADS, mixer="contextpool")
    with pytest.raises(ValueError, match="did you mean"):
        TransformerBlock(D, HEADS, placement="after_atention")
    with pytest.raises(ValueError, match='did you mean "rotary"'):
        Positions("rotery")
    with pytest.raises(ValueError, match="multiple of heads"):
        Attention(10, 3)
