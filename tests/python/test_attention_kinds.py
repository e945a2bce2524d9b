"""Local and area attention in Python against their formulas over all pairs; padding, causality, steps, shared rows."""

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor

from contextpool.nn import Attention, AttentionCache, CrossAttention, Reach

D, HEADS, WIDTH = 12, 2, 3
KINDS = ("full", "local", "area")


def scattered(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(5)
    module.double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.6)
    return module


def by_itself(kind: str, causal: bool) -> Attention:
    return scattered(Attention(D, HEADS, causal=causal, reach=Reach(kind, area_width=WIDTH)))


def formula(module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """q [M, H, n], k and v [N, H, n], seen [M, N]: the output [M, D] of one row, a query and a head at a time."""
    kind = module.reach.kind if isinstance(module, Attention) else module.kind
    out = []
    for i, h in itertools.product(range(q.shape[0]), range(HEADS)):
        at = seen[i].nonzero().flatten().tolist()
        if kind == "area":
            areas = [range(a, a + w) for a in at for w in range(1, WIDTH + 1) if set(range(a, a + w)) <= set(at)]
        else:
            areas = [range(a, a + 1) for a in at]
        keys = torch.stack([k[list(area), h].mean(0) for area in areas])
        values = torch.stack([v[list(area), h].sum(0) for area in areas])
        score = keys @ q[i, h] / math.sqrt(D // HEADS)
        if kind == "local":
            hidden = torch.tanh(module.local.weight[h] @ q[i, h])
            centre = len(at) * torch.sigmoid(module.local.centre[h] @ hidden)
            sigma = len(at) * torch.sigmoid(module.local.width[h] @ hidden) / 2
            score = score - (torch.arange(len(at)) - centre) ** 2 / (2 * sigma**2)
        out.append(score.softmax(0) @ values)
    return module.out(torch.stack(out).view(q.shape[0], D))


def padding() -> Tensor:
    return torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 0, 0, 1]], dtype=torch.bool)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("kind", KINDS)
def test_attention_over_the_row_itself_is_its_formula(kind: str, causal: bool) -> None:
    module, real = by_itself(kind, causal), padding()
    x = torch.randn(3, 7, D, dtype=torch.float64, requires_grad=True)
    expected = []
    for b in range(3):
        q, k, v = module.qkv(x[b]).view(7, 3, HEADS, -1).unbind(1)
        seen = real[b].expand(7, 7).tril() if causal else real[b].expand(7, 7)
        expected.append(formula(module, q[real[b]], k, v, seen[real[b]]))
    y = module(x, mask=real)[real]
    torch.testing.assert_close(y, torch.cat(expected), rtol=0, atol=1e-12)
    leaves, weight = [x, *module.parameters()], torch.randn_like(y)
    ours, theirs = torch.autograd.grad(y, leaves, weight), torch.autograd.grad(torch.cat(expected), leaves, weight)
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(module(x), module(x, mask=torch.ones_like(real)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_over_another_row_is_its_formula_and_can_be_shared(kind: str) -> None:
    module = scattered(CrossAttention(D, HEADS, kind=kind, area_width=WIDTH))
    x, memory, real = torch.randn(6, 2, D).double(), torch.randn(3, 7, D).double(), padding()
    expected = []
    for b in range(3):
        k, v = module.kv(memory[b]).view(7, 2, HEADS, -1).unbind(1)
        q = module.q(x[2 * b : 2 * b + 2]).view(4, HEADS, -1)
        expected.append(formula(module, q, k, v, real[b].expand(4, 7)).view(2, 2, D))
    expected = torch.cat(expected)
    memory[~real] = torch.nan
    shared = module.remember(memory, mask=real)
    shared.repeat(2)
    torch.testing.assert_close(module(x, shared), expected, rtol=0, atol=1e-12)
    rows, chosen = torch.tensor([5, 0, 3]), shared.copy()
    chosen.select(rows)
    torch.testing.assert_close(module(x[rows], chosen), expected[rows], rtol=0, atol=1e-12)
    shared.select_shared(torch.tensor([True, False, True]))
    rows = torch.tensor([0, 1, 4, 5])
    torch.testing.assert_close(module(x[rows], shared), expected[rows], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="the memory is for 4 rows, but x has 6"):
        module(x, shared)


@torch.no_grad()
@pytest.mark.parametrize("kind", ("local", "area"))
def test_steps_of_left_padded_rows_equal_the_whole(kind: str) -> None:
    module = by_itself(kind, True)
    x = torch.randn(3, 20, D, dtype=torch.float64)
    real = torch.arange(20) >= torch.tensor([[0], [7], [19]])
    whole, cache, first = module(x, mask=real), AttentionCache(), 0
    for count in (9, 1, 1, 9):
        part = slice(first, first + count)
        y = module.step(x[:, part], cache, mask=real[:, part])
        torch.testing.assert_close(y[real[:, part]], whole[:, part][real[:, part]], rtol=0, atol=1e-12)
        first += count
    for b, start in enumerate((0, 7, 19)):
        torch.testing.assert_close(module(x[b : b + 1, start:])[0], whole[b, start:], rtol=0, atol=1e-12)
    changed = x.clone()
    changed[:, 12:] = 5
    assert torch.equal(module(changed, mask=real)[:, :12], whole[:, :12])


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_copy_compile_and_survive_autocast(kind: str) -> None:
    module = by_itself(kind, True).float()
    x = torch.randn(2, 12, D)
    expected = module(x)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-5)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        rough = module(x)
    torch.testing.assert_close(rough.float(), expected, rtol=0.1, atol=0.1 * expected.abs().max().item())


def test_kinds_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match='did you mean "area"'):
        Attention(D, HEADS, reach=Reach("areas"))
    with pytest.raises(ValueError, match="expected one of full, local, area"):
        CrossAttention(D, HEADS, kind="window")
    with pytest.raises(ValueError, match="area_width must be positive"):
        Attention(D, HEADS, reach=Reach("area", area_width=0))
