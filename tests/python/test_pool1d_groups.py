"""pool1d of groups of channels that lie side by side: the same numbers as of copies, and nothing is copied."""

import pytest
import torch
from torch import Tensor

import contextpool
from pool1d_cases import DTYPES, devices, weight_dtype

OP = torch.ops.contextpool.pool1d.default
OP_BACKWARD = torch.ops.contextpool._pool1d_backward.default

# rows, tokens, targets, groups, channels of each: few and many tokens; channels that fill pieces of 16 bytes or not
SHAPES = ((2, 40, 40, 4, 8), (1, 70, 50, 3, 5), (2, 700, 700, 2, 64), (1, 1500, 1300, 2, 72), (3, 1, 1, 2, 16))


def side_by_side(x: Tensor) -> Tensor:
    """``x [rows, groups, tokens, channels]`` in the memory order of ``[rows, tokens, groups, channels]``."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def lies_side_by_side(x: Tensor) -> bool:
    return x.transpose(1, 2).is_contiguous()


def inputs(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, tokens, targets, groups, channels = shape
    g = torch.Generator().manual_seed(5)
    x = torch.randn(rows, groups, tokens, channels, generator=g).to(device, dtype)
    log_weight = torch.randn(rows, groups, tokens, generator=g).to(device, weight_dtype(dtype))
    log_weight[:, :, tokens // 3 : tokens // 2] = -torch.inf
    sigma = (0.4 + torch.rand(rows, groups, targets, generator=g) * tokens / 5).to(device, weight_dtype(dtype))
    sigma[:, 0, ::3] = 1.5
    dy = torch.randn(rows, groups, targets, channels, generator=g).to(device, dtype)
    return x, log_weight, sigma, dy


def results(x: Tensor, log_weight: Tensor, sigma: Tensor, dy: Tensor, causal: bool) -> tuple[Tensor, ...]:
    leaves = tuple(t.detach().requires_grad_() for t in (x, log_weight, sigma))
    y = contextpool.pool1d(*leaves, causal=causal)
    return y.detach(), *torch.autograd.grad(y, leaves, dy)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t).removeprefix("torch."))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gives_the_bits_of_copies(shape: tuple[int, ...], dtype: torch.dtype, causal: bool, device: str) -> None:
    x, log_weight, sigma, dy = inputs(shape, dtype, device)
    expected = results(x, log_weight, sigma, dy, causal)
    for gradient in (dy, side_by_side(dy)):
        got = results(side_by_side(x), log_weight, sigma, gradient, causal)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert lies_side_by_side(got[0])
        assert lies_side_by_side(got[1])
    assert expected[0].is_contiguous()
    assert expected[1].is_contiguous()


@pytest.mark.parametrize("device", devices())
def test_reads_groups_wherever_they_are(device: str) -> None:
    """Of some of the channels, of every other token, one group for all, and channels that are not contiguous."""
    x, log_weight, sigma, dy = inputs((2, 60, 60, 4, 16), torch.bfloat16, device)
    wide = torch.cat((x, x + 1), 3).transpose(1, 2).contiguous().transpose(1, 2)
    views = (
        (wide[..., :16], x),
        (wide[..., 3:19], wide[..., 3:19].contiguous()),
        (side_by_side(x.repeat_interleave(2, 2))[:, :, ::2], x),
        (side_by_side(x)[:, :1].expand(-1, 4, -1, -1), x[:, :1].expand(-1, 4, -1, -1).contiguous()),
        (x.permute(0, 3, 2, 1).contiguous().permute(0, 3, 2, 1), x),
    )
    for view, copy in views:
        got, expected = results(view, log_weight, sigma, dy, True), results(copy, log_weight, sigma, dy, True)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shape", ((2, 20, 13, 3, 4), (0, 9, 9, 2, 8), (2, 9, 0, 2, 8)), ids=str)
def test_opcheck(device: str, shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, log_weight, sigma, dy = inputs(shape, dtype, device)
        x, options = side_by_side(x), {"causal": True, "algorithm": "auto"}
        leaves = tuple(t.detach().requires_grad_() for t in (x, log_weight, sigma))
        torch.library.opcheck(OP, leaves, options)
        torch.library.opcheck(OP, (x, log_weight, sigma), options)
        torch.library.opcheck(OP_BACKWARD, (dy, x, log_weight, sigma), options)


@pytest.mark.parametrize("device", devices())
def test_module_with_groups_copies_nothing(device: str) -> None:
    """From the features to the result, forward and backward, every tensor of its size is a view but y and dx."""
    pool = contextpool.nn.ContextPool1d(32, groups=4).to(device)
    x = torch.randn(2, 50, 32, device=device, requires_grad=True)
    with torch.profiler.profile(record_shapes=True) as profile:
        y = pool(x)
        y.backward(torch.ones_like(y))
    copies = [e for e in profile.events() if e.name in ("aten::copy_", "aten::clone") and e.input_shapes[0] == [2, 4, 50, 8]]
    assert not copies
