"""What a PyTorch user would write instead of the operators: the formula, dense, eagerly and under torch.compile.

    pool1d   y_i = sum_j p_ij x_j,   p_ij = softmax over j of l_j - (i - j)^2 / (2 sigma_i^2)
    pool2d   the same over pixels, with the squared distance between pixels

Weights are computed in the dtype of sigma and cast to that of x for the product. Every benchmark compares with these,
on the tensors that `rows` and `maps` draw.
"""

import torch
from torch import Tensor

# Each shape is a graph of its own.
torch._dynamo.config.recompile_limit = 256


def pool1d(x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool) -> Tensor:
    n, targets = x.shape[1], sigma.shape[1]
    j = torch.arange(n, device=x.device, dtype=sigma.dtype)
    i = j[n - targets :, None]
    score = log_weight[:, None, :] - (i - j).square() / (2 * sigma.square())[:, :, None]
    if causal:
        score = score.masked_fill(j > i, float("-inf"))
    return score.softmax(-1).to(x.dtype) @ x


def pool2d(x: Tensor, log_weight: Tensor, sigma: Tensor, stride: int) -> Tensor:
    height, width = x.shape[2:]
    i, j = (torch.arange(n, device=x.device, dtype=sigma.dtype) for n in (height, width))
    rows, columns = (i[::stride, None] - i).square(), (j[::stride, None] - j).square()
    distance = (rows[:, None, :, None] + columns[None, :, None, :]).reshape(-1, height * width)
    score = log_weight.flatten(1)[:, None, :] - distance / (2 * sigma.square()).flatten(1)[..., None]
    y = score.softmax(-1).to(x.dtype) @ x.flatten(2).transpose(1, 2)
    return y.transpose(1, 2).reshape(*x.shape[:2], *sigma.shape[1:])


compiled_pool1d = torch.compile(pool1d, dynamic=False)
compiled_pool2d = torch.compile(pool2d, dynamic=False)


def rows(
    batch: int, length: int, features: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, log_weight and sigma of rows; sizes as the paper draws them, uniform up to a tenth of the length."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(batch, length, features, generator=g)
    log_weight = torch.randn(batch, length, generator=g)
    sigma = 0.1 * length * torch.rand(batch, length, generator=g) + 0.3
    return [x.to(device, dtype), log_weight.to(device), sigma.to(device)]


MAP_RATIO = 0.05  # of the side: the largest sigma of `maps`


def maps(batch: int, channels: int, side: int, stride: int, device: str = "cpu", dtype: torch.dtype = torch.float32,
         channels_last: bool = False) -> list[Tensor]:  # fmt: skip
    """x, log_weight and sigma of square maps; sizes uniform up to 0.05 of the side."""
    g = torch.Generator(device).manual_seed(0)
    targets = -(-side // stride)
    x = torch.randn(batch, channels, side, side, generator=g, device=device).to(dtype)
    sigma = MAP_RATIO * side * torch.rand(batch, targets, targets, generator=g, device=device) + 0.05
    log_weight = torch.randn(batch, side, side, generator=g, device=device)
    return [x.contiguous(memory_format=torch.channels_last) if channels_last else x, log_weight, sigma]
