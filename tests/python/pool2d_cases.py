"""The formula of pool2d in plain PyTorch, maps to try it on, and the accuracy contract as one check."""

import torch
from torch import Tensor

import contextpool
from pool1d_cases import INF, NAN, TOLERANCE, Inputs, draw_sizes, gradients, largest, ulp, weight_dtype

MAP_ALGORITHMS = ("auto", "dense", "window")
Stride = tuple[int, int]


def out_size(height: int, width: int, stride: Stride) -> tuple[int, int]:
    return -(-height // stride[0]), -(-width // stride[1])


def draw_log_weights(kind: str, shape: tuple[int, int, int], g: torch.Generator) -> Tensor:
    normal = torch.randn(shape, generator=g, dtype=torch.float64)
    if kind == "clusters":  # a light ground with patches 40 above it
        seeds = (torch.rand(shape, generator=g) < 0.005).float()
        heavy = torch.nn.functional.max_pool2d(seeds[:, None], 3, 1, 1)[:, 0] > 0
        return torch.where(heavy, 20.0, -20 + normal.sigmoid())
    if kind == "plus_minus_20":
        return 20 * normal.sign()
    return normal.mul({"equal": 0.0, "spread_1": 1.0, "spread_5": 5.0}[kind]).clamp(-20, 20)


def mask_of(kind: str, height: int, width: int) -> Tensor:
    i, j = torch.arange(height)[:, None], torch.arange(width)
    return {
        "none": (i < 0) | (j < 0),
        "left": (j < width // 3) | (i < 0),
        "bottom": (i >= height - height // 3) | (j < 0),
        "checkered": (i + j) % 2 == 0,
        "everywhere": (i >= 0) & (j >= 0),
    }[kind]


def laid_out(t: Tensor, layout: str) -> Tensor:
    """The same values with other strides; NaN lies between the elements of a slice."""
    if layout == "channels_last" and t.dim() == 4:
        return t.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":
        view = torch.full([2 * s + 1 for s in t.shape], NAN, dtype=t.dtype, device=t.device)
        return view[tuple(slice(1, 2 * s + 1, 2) for s in t.shape)].copy_(t)
    return t


def make(
    shape: tuple[int, int, int, int],
    stride: Stride = (1, 1),
    dtype: torch.dtype = torch.float32,
    sizes: str = "proportional",
    logits: str = "spread_1",
    mask: str = "none",
    layout: str = "contiguous",
    seed: int = 0,
    device: str = "cpu",
) -> Inputs:
    """Inputs for x of shape [B, C, H, W], the same for the same arguments."""
    batch, _, height, width = shape
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g, dtype=torch.float64)
    log_weight = draw_log_weights(logits, (batch, height, width), g)
    sigma = draw_sizes(sizes, (batch, *out_size(height, width, stride)), max(height, width), g)
    hidden = mask_of(mask, height, width)
    log_weight[:, hidden] = -INF
    poison = torch.tensor([NAN, INF, -INF], dtype=torch.float64)
    x[:, :, hidden] = poison[torch.arange(int(hidden.sum())) % 3]
    fine = weight_dtype(dtype)
    parts = x.to(dtype), log_weight.to(fine), sigma.to(fine)
    return Inputs(*(laid_out(t.to(device), layout) for t in parts))


def squares(
    height: int, width: int, stride: Stride, device: torch.device, targets: Tensor | None = None
) -> Tensor:
    """d^2 between targets (all, or those with these numbers) and pixels, [targets, H W]."""
    ho, wo = out_size(height, width, stride)
    m = torch.arange(ho * wo, device=device) if targets is None else targets
    i, j = torch.arange(height, device=device), torch.arange(width, device=device)
    di2 = ((m // wo * stride[0])[:, None] - i).square()
    dj2 = ((m % wo * stride[1])[:, None] - j).square()
    return (di2[:, :, None] + dj2[:, None, :]).flatten(1)


def weights(log_weight: Tensor, sigma: Tensor, stride: Stride, targets: Tensor | None = None) -> Tensor:
    """p_ij, [B, targets, H W], in the dtype of sigma: the formula with its support, masks and limits."""
    d2 = squares(*log_weight.shape[1:], stride, sigma.device, targets).to(sigma.dtype)
    size, l = sigma.flatten(1)[..., None], log_weight.flatten(1)[:, None, :]
    if targets is not None:
        size = size[:, targets]
    exists = ((d2 == 0) | ((size > 0) & (d2 <= 160 * size * size))) & (l != -INF)
    ratio = torch.where(exists & (d2 != 0), d2.sqrt() / torch.where(size > 0, size, 1), 0)
    score = torch.where(exists, l - ratio * ratio / 2, -INF)
    some = exists.any(-1, keepdim=True)
    return torch.where(some, torch.softmax(torch.where(some, score, 0), -1), 0)


def formula(x: Tensor, log_weight: Tensor, sigma: Tensor, stride: Stride) -> Tensor:
    """The operator densely, as a PyTorch user would write it: weights cast to the dtype of x, one product."""
    live = torch.where((log_weight != -INF)[:, None], x, 0)
    y = weights(log_weight, sigma, stride).to(x.dtype) @ live.flatten(2).transpose(1, 2)
    return y.transpose(1, 2).reshape(*x.shape[:2], *sigma.shape[1:])


def check(inputs: Inputs, stride: Stride, algorithm: str) -> None:
    """y and the three gradients keep the accuracy contract, map by map of the batch."""
    dtype = inputs.x.dtype
    leaves = inputs.leaves()
    y = contextpool.pool2d(*leaves, stride, algorithm)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y)
    got = (y, *gradients(y, leaves, dy))

    exact = Inputs(*(t.double() for t in inputs)).leaves()
    y64 = formula(*exact, stride)
    want = (y64.detach(), *gradients(y64, exact, dy.double()))

    live = torch.where((exact.log_weight != -INF)[:, None], exact.x, 0).detach()
    p = weights(exact.log_weight, exact.sigma, stride).detach()
    size = torch.where(exact.sigma > 0, exact.sigma, INF).detach().flatten(1)
    d2 = squares(*live.shape[2:], stride, live.device)
    steep = torch.where(p > 0, p * d2 / size[..., None] ** 2, 0).sum(-1) / size
    s_log_weight = dy.double().norm(dim=1).flatten(1).amax(1) * live.norm(dim=1).flatten(1).amax(1)
    scales = (largest(live), 0, s_log_weight, s_log_weight * largest(steep))

    tolerance = TOLERANCE[weight_dtype(dtype)]
    half = dtype in (torch.bfloat16, torch.float16)
    if half:
        dense = inputs.leaves()
        y16 = formula(*dense, stride)
        peer = (y16.detach(), *gradients(y16, dense, dy))
    for k, name in enumerate(("y", "dx", "dlog_weight", "dsigma")):
        if k == 0:
            bound = tolerance["value"] * scales[0]
        else:
            bound = tolerance["gradient"] * largest(want[k]) + tolerance["scale"] * scales[k]
        bound = bound.reshape(-1, *[1] * (want[k].dim() - 1)).clamp(min=torch.finfo(weight_dtype(dtype)).tiny)
        if half:
            error = largest(peer[k].double() - want[k]).reshape(bound.shape)
            bound = torch.maximum(bound, 2 * error) + ulp(want[k], got[k].dtype)
        excess = (got[k].double() - want[k]).abs() - bound
        worst = excess.nan_to_num(nan=INF).argmax()
        assert excess.flatten()[worst] <= 0, (
            f"{name}: {got[k].flatten()[worst]:.9g} instead of {want[k].flatten()[worst]:.9g} at {worst} of "
            f"{tuple(want[k].shape)}; allowed {bound.expand(want[k].shape).flatten()[worst]:.3g}"
        )
