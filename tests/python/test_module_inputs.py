"""What modules accept as padding, shapes and dtypes, and what they say to what they refuse."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from context_pool_cases import scattered
from contextpool.models import LanguageModel, LanguageModelOptions
from contextpool.nn import Attention, ContextPool1d, ContextPool2d, Depthwise, Positions, TransformerBlock

D = 8
ROWS: dict[str, Callable[..., nn.Module]] = {
    "ContextPool1d": lambda **kind: ContextPool1d(D, **kind),
    "Attention": lambda **kind: Attention(D, 2, **kind),
    "Depthwise": lambda **kind: Depthwise(D, 3, **kind),
    "TransformerBlock": lambda **kind: TransformerBlock(D, 2, 16, mixer="context_pool", **kind),
}
SMALL = LanguageModelOptions(vocabulary=30, layers=1, features=D, heads=2, feedforward=16, mixer="context_pool")
EVERY = ROWS | {
    "ContextPool2d": lambda **kind: ContextPool2d(D, weights="nonlocal", **kind),
    "Positions": lambda **kind: Positions("learned", D, 2, 16, **kind),
    "LanguageModel": lambda **kind: LanguageModel(SMALL, **kind),
    "adaptive span": lambda **kind: LanguageModel(
        LanguageModelOptions(layers=1, features=D, heads=2, attention="adaptive_span", mixer="depthwise"), **kind
    ),
}
EACH_ROW_MODULE = pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)


@EACH_ROW_MODULE
@torch.no_grad()
def test_padding_may_be_bool_or_integers_of_either_polarity(make: Callable[..., nn.Module]) -> None:
    module = scattered(make())
    x, mask = torch.randn(3, 9, D).double(), torch.arange(9) < torch.tensor([[9], [4], [0]])
    expected = module(x, mask=mask)
    for dtype in (torch.int64, torch.int32, torch.uint8):
        assert torch.equal(module(x, mask=mask.to(dtype)), expected)
        assert torch.equal(module(x, key_padding_mask=(~mask).to(dtype)), expected)
    assert torch.equal(module(x, key_padding_mask=~mask), expected)


def test_maps_take_integer_masks() -> None:
    pool, x = ContextPool2d(D), torch.randn(2, D, 4, 5)
    mask = torch.rand(2, 4, 5) > 0.3
    assert torch.equal(pool(x, mask.int()), pool(x, mask))


@EACH_ROW_MODULE
def test_padding_that_cannot_be_meant_is_refused(make: Callable[..., nn.Module]) -> None:
    module, x, mask = make(), torch.randn(2, 5, D), torch.ones(2, 5, dtype=torch.bool)
    name = type(module).__name__
    for wrong in (torch.zeros(2, 5), mask[:, :4], mask[0], mask.unsqueeze(1)):
        with pytest.raises(ValueError, match=rf"{name}: mask must be \[2, 5\] of bool or of integers"):
            module(x, mask=wrong)
        with pytest.raises(ValueError, match=rf"{name}: key_padding_mask must be \[2, 5\]"):
            module(x, key_padding_mask=wrong)
    with pytest.raises(ValueError, match=f"{name}: .*give one of them"):
        module(x, mask=mask, key_padding_mask=mask)


@EACH_ROW_MODULE
def test_a_mask_without_any_real_token_is_warned_of(make: Callable[..., nn.Module]) -> None:
    module, x, none = make(), torch.randn(2, 5, D), torch.zeros(2, 5, dtype=torch.bool)
    with pytest.warns(UserWarning, match="mask has no real token.*key_padding_mask="):
        module(x, mask=none)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x, key_padding_mask=none)
        module(x, mask=torch.tensor([[False] * 5, [True] * 5]))


@pytest.mark.parametrize("make", (ROWS["ContextPool1d"], ROWS["TransformerBlock"], EVERY["LanguageModel"]))
def test_lengths_are_a_list_or_a_tensor_within_the_row(make: Callable[..., nn.Module]) -> None:
    module = make().eval()
    x = torch.randint(0, 30, (2, 5)) if isinstance(module, LanguageModel) else torch.randn(2, 5, D)
    expected = module(x, lengths=torch.tensor([5, 2]))
    assert torch.equal(module(x, lengths=[5, 2]), expected)
    assert torch.equal(module(x, lengths=torch.tensor([5, 2], dtype=torch.int32)), expected)
    for wrong in ([5, 6], [-1, 2], torch.tensor([5, 6])):
        with pytest.raises(ValueError, match=r"lengths must be from 0 to the 5 tokens of a row, but are \["):
            module(x, lengths=wrong)
    for wrong in ([5], [5.0, 2.0], torch.ones(2, dtype=torch.bool), [[5, 2]]):
        with pytest.raises(ValueError, match=r"lengths must be \[2\] integers, one for each row"):
            module(x, lengths=wrong)


@pytest.mark.parametrize("name", EVERY)
def test_device_and_dtype_are_those_asked_for(name: str) -> None:
    module = EVERY[name](device="meta", dtype=torch.bfloat16)
    assert all(p.is_meta and p.dtype == torch.bfloat16 for p in module.parameters()) and list(module.parameters())
    torch.manual_seed(1)
    in_float64 = EVERY[name](dtype=torch.float64)
    torch.manual_seed(1)
    plain = EVERY[name]().double()
    for (key, a), b in zip(in_float64.state_dict().items(), plain.state_dict().values(), strict=True):
        assert a.dtype == torch.float64 and a.shape == b.shape, key


@pytest.mark.parametrize("dims", (1, 2))
def test_another_dtype_than_the_parameters_is_explained(dims: int) -> None:
    pool = (ContextPool1d if dims == 1 else ContextPool2d)(D)
    x = (torch.randn(2, 5, D) if dims == 1 else torch.randn(2, D, 5, 5)).bfloat16()
    with pytest.raises(ValueError, match=r"x is torch.bfloat16, but the parameters are torch.float32; .*autocast"):
        pool(x)
    assert pool.to(torch.bfloat16)(x).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert pool.float()(x).dtype == torch.bfloat16


def test_channels_in_another_place_are_pointed_out() -> None:
    with pytest.raises(ValueError, match=r"but is \[2, 5, 6, 8\]; x.permute\(0, 3, 1, 2\) puts the channels second"):
        ContextPool2d(D)(torch.randn(2, 5, 6, D))
    with pytest.raises(ValueError, match=r"but is \[2, 8, 5\]; x.transpose\(1, 2\) puts the features last"):
        ContextPool1d(D)(torch.randn(2, D, 5))
    x = torch.randn(2, D, 5, 6)
    torch.testing.assert_close(ContextPool2d(D)(x.to(memory_format=torch.channels_last)).shape, x.shape)
