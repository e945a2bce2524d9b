"""pool2d where numbers are large, extreme or NaN, on every device there is."""

import pytest
import torch

import contextpool
from pool1d_cases import NAN, devices

pytestmark = pytest.mark.parametrize("device", devices())


def test_a_weight_that_is_no_number_shows_where_it_is_used_and_nowhere_else(device: str) -> None:
    x, sigma = torch.randn(1, 2, 1, 64, device=device), torch.ones(1, 1, 64, device=device)
    log_weight = torch.zeros(1, 1, 64, device=device)
    log_weight[..., 0] = NAN
    leaves = [t.requires_grad_() for t in (x, log_weight, sigma)]
    y = contextpool.pool2d(*leaves)
    reach = 12  # the largest d with d^2 <= 160
    assert y[..., : reach + 1].isnan().all() and y[..., reach + 1 :].isfinite().all()
    for grad in torch.autograd.grad(y, leaves, torch.ones_like(y)):
        assert grad[..., 2 * reach + 1 :].isfinite().all()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("all_of_them", (-1e9, 1e9))
def test_log_weights_count_by_their_differences(all_of_them: float, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(1, 1, 56, 56, device=device).to(dtype)
    log_weight, sigma = torch.full((1, 56, 56), all_of_them, device=device), torch.full((1, 56, 56), 3.0, device=device)
    got, want = (contextpool.pool2d(x, l, sigma).float() for l in (log_weight, torch.zeros_like(log_weight)))
    assert (got - want).abs().max() <= (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_the_least_log_weight_is_one(dtype: torch.dtype, device: str) -> None:
    x = torch.randn(1, 3, 9, 9, device=device).to(dtype)
    log_weight = torch.full((1, 9, 9), torch.finfo(torch.float32).min, device=device)
    assert torch.equal(contextpool.pool2d(x, log_weight, torch.zeros_like(log_weight)), x)


@pytest.mark.parametrize("width", (512, 2048))
def test_a_flat_map_stays_flat(width: int, device: str) -> None:
    x = torch.full((1, 1, 4, width), 0.9, device=device)
    log_weight = torch.zeros(1, 4, width, device=device)
    sigma = torch.full((1, 1, 1), float("inf"), device=device)
    assert (contextpool.pool2d(x, log_weight, sigma, stride=(4, width)) - 0.9).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
def test_gradients_that_overflowed_reach_every_pixel_of_a_large_map(dtype: torch.dtype, device: str) -> None:
    """What mixed precision does now and then."""
    x = torch.randn(1, 8, 512, 512, device=device).to(dtype).requires_grad_()
    log_weight, sigma = torch.zeros(1, 512, 512, device=device), torch.ones(1, 512, 512, device=device)
    y = contextpool.pool2d(x, log_weight, sigma)
    (dx,) = torch.autograd.grad(y, (x,), torch.full_like(y, float("inf")))
    assert not dx.isfinite().any()
