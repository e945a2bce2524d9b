"""Decoding with caches, for every module that has steps: left-padded batches, gradients, and what is done to caches
(crop, select, reorder, repeat)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from context_pool_cases import combinations, scattered
from contextpool.models import LanguageModel, LanguageModelCache
from contextpool.nn import (
    Attention,
    AttentionCache,
    BlockCache,
    ContextPool1d,
    ContextPoolCache,
    Depthwise,
    DepthwiseCache,
    Positions,
    Reach,
    TransformerBlock,
)

D, HEADS, TOKENS = 8, 2, 30
LENGTHS = torch.tensor([TOKENS, 17, 3, 1])
REAL = torch.arange(TOKENS) >= TOKENS - LENGTHS.unsqueeze(1)  # padded in front
CUTS = (9, 8, 1, 1, 11)  # the second row begins inside of the second piece


class Case:
    """A causal module with random parameters, and its step; rows are features, or symbols for the language model."""

    def __init__(self, module: torch.nn.Module, cache: Callable[[], Any], symbols: bool = False) -> None:
        self.module, self.cache, self.symbols = scattered(module).eval(), cache, symbols

    def rows(self) -> Tensor:
        torch.manual_seed(7)
        if self.symbols:
            return torch.randint(0, 30, (len(LENGTHS), TOKENS))
        return torch.randn(len(LENGTHS), TOKENS, D, dtype=torch.float64)


def language_model(**options: Any) -> LanguageModel:
    small = {"vocabulary": 30, "layers": 2, "features": D, "heads": HEADS, "feedforward": 16, "length": 64}
    return LanguageModel.from_options({**small, "pool_reference_length": 20, "pool_hidden": 5, **options})


def cases() -> Iterator[Any]:
    for options in combinations(1, causal=True):
        name = "-".join(str(v) for v in list(options.values())[:5])
        yield pytest.param(lambda o=options: Case(ContextPool1d(D, **o), ContextPoolCache), id=f"pool-{name}")
    for reach in (Reach(), Reach("window", 6, 1, 1), Reach("adaptive_span", span_limit=12)):
        yield pytest.param(
            lambda r=reach: Case(Attention(D, HEADS, causal=True, reach=r), AttentionCache),
            id=f"attention-{reach.kind}",
        )
    yield pytest.param(lambda: Case(Depthwise(D, 5, causal=True), DepthwiseCache), id="depthwise")
    for mixer in ("none", "context_pool", "depthwise"):
        for placement in ("after_attention", "after_block", "before_attention"):
            options = {"mixer": mixer, "placement": placement, "taps": 5}
            pool = {"reference_length": 20, "hidden": 5}
            yield pytest.param(
                lambda o=options: Case(TransformerBlock(D, HEADS, 16, causal=True, pool=pool, **o), BlockCache),
                id=f"block-{mixer}-{placement}",
            )
        for positions in ("rotary", "learned", "sinusoidal"):
            yield pytest.param(
                lambda m=mixer, p=positions: Case(language_model(mixer=m, positions=p), LanguageModelCache, True),
                id=f"model-{mixer}-{positions}",
            )


ALL = pytest.mark.parametrize("make", list(cases()))
SOME = pytest.mark.parametrize(
    "make", [c for c in cases() if not c.id.startswith("pool-") or c.id.endswith("conv-softmax-gaussian-sigmoid-2")]
)


def steps(case: Case, x: Tensor, cuts: tuple[int, ...], cache: Any, mask: Tensor | None = None) -> Tensor:
    masks = [None] * len(cuts) if mask is None else mask.split(cuts, 1)
    return torch.cat(
        [case.module.step(part, cache, mask=some) for part, some in zip(x.split(cuts, 1), masks, strict=True)], 1
    )


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10 * max(1.0, expected.abs().max().item()))


@ALL
@torch.no_grad()
def test_left_padded_steps_equal_the_whole_and_each_row_alone(make: Callable[[], Case]) -> None:
    case = make()
    x = case.rows()
    if not case.symbols:
        x[~REAL] = torch.nan
    y = steps(case, x, CUTS, case.cache(), REAL)
    close(y[REAL], case.module(x, mask=REAL)[REAL])
    close(y[REAL], case.module(x, key_padding_mask=(~REAL).int())[REAL])
    alone = [case.module(x[b : b + 1, TOKENS - n :])[0] for b, n in enumerate(LENGTHS.tolist())]
    close(y[REAL], torch.cat(alone))


@SOME
@torch.no_grad()
def test_a_mask_of_the_prompt_is_remembered(make: Callable[[], Case]) -> None:
    case = make()
    x, cache = case.rows(), case.cache()
    prompt = case.module.step(x[:, :29], cache, mask=REAL[:, :29].long())
    last = case.module.step(x[:, 29:], cache)
    close(torch.cat((prompt, last), 1)[REAL], case.module(x, mask=REAL)[REAL])
    # And one that comes late.
    cache = case.cache()
    case.module.step(x[:, :5], cache)
    late = case.module.step(x[:, 5:7], cache, key_padding_mask=torch.tensor([[False, True]] * 4))
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 6] = False
    close(late[:, 0], case.module(x[:, :7], mask=mask)[:, 5])


@SOME
def test_gradients_flow_through_steps(make: Callable[[], Case]) -> None:
    case = make()
    x = case.rows()
    leaves = list(case.module.parameters())
    if not case.symbols:
        leaves.append(x.requires_grad_())
    expected = torch.autograd.grad(case.module(x, mask=REAL)[REAL].square().sum(), leaves, allow_unused=True)
    got = torch.autograd.grad(
        steps(case, x, CUTS, case.cache(), REAL)[REAL].square().sum(), leaves, allow_unused=True
    )
    for a, b in zip(got, expected, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8 * max(1.0, b.abs().max().item()))


@SOME
def test_steps_without_gradients_leave_earlier_graphs_alone(make: Callable[[], Case]) -> None:
    case = make()
    x, cache = case.rows(), case.cache()
    first = steps(case, x[:, :12], (5, 7), cache)
    cache.crop(8)  # room in tensors that the graph holds
    with torch.no_grad():
        rest = steps(case, x[:, 8:], (1, 21), cache)
    close(rest, case.module(x)[:, 8:])
    first.sum().backward()
    with torch.inference_mode():
        inside = case.cache()
        steps(case, x[:, :12], (5, 7), inside)
    with torch.no_grad():
        close(steps(case, x[:, 12:], (18,), inside), case.module(x)[:, 12:])


@SOME
@torch.no_grad()
def test_a_cropped_cache_continues_where_it_was_cut(make: Callable[[], Case]) -> None:
    case = make()
    x, cache = case.rows(), case.cache()
    other = x.roll(3, 1)
    case.module.step(x[:, :20], cache, mask=REAL[:, :20])
    case.module.step(other[:, 20:27], cache)
    cache.crop(20)
    assert cache.length == 20
    rest = REAL[:, 20:]
    close(case.module.step(x[:, 20:], cache, mask=rest)[rest], case.module(x, mask=REAL)[:, 20:][rest])
    for length in (-1, 31):
        with pytest.raises(ValueError, match="crop keeps the first tokens, from 0 to all 30"):
            cache.crop(length)
    cache.crop(0)
    close(case.module.step(x, cache)[:1], case.module(x)[:1])


@SOME
@pytest.mark.parametrize("way", ("reorder", "select", "keep", "repeat"))
@torch.no_grad()
def test_rows_of_a_cache_can_be_chosen(make: Callable[[], Case], way: str) -> None:
    case = make()
    x, cache = case.rows(), case.cache()
    case.module.step(x[:, :20], cache, mask=REAL[:, :20])
    if way == "repeat":
        cache.repeat(3)
        rows = torch.arange(4).repeat_interleave(3)
    elif way == "keep":
        cache.select(torch.tensor([True, False, True, True]))
        rows = torch.tensor([0, 2, 3])
    else:
        rows = torch.tensor([3, 0, 0, 1]) if way == "reorder" else torch.tensor([2, 1])
        getattr(cache, way)(rows)
    assert cache.rows == len(rows)
    rest = REAL[rows, 20:]
    close(case.module.step(x[rows, 20:], cache, mask=rest)[rest], case.module(x, mask=REAL)[rows, 20:][rest])
    with pytest.raises(ValueError, match=f"the cache has {len(rows)} rows, but the new tokens have 7"):
        case.module.step(torch.cat((x, x))[:7, 20:], cache)
    with pytest.raises(ValueError, match="repeat needs 1 or more"):
        cache.repeat(0)


@torch.no_grad()
def test_positions_of_padded_rows_are_those_of_the_row_alone() -> None:
    x = torch.randn(2, 5, D, dtype=torch.float64)
    at = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]])
    for kind in ("learned", "sinusoidal"):
        positions = Positions(kind, D, HEADS, length=9).double()
        close(positions.add(x, 0, at)[1, 2:], positions.add(x[1:, 2:])[0])
    positions = Positions("rotary", D, HEADS)
    close(positions.rotation(x, 0, at)[:, 1, 2:], positions.rotation(x[:, 2:]))
