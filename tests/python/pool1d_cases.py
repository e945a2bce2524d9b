"""The formula of pool1d in plain PyTorch, inputs to try it on, and the accuracy contract as one check."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

import contextpool

ALGORITHMS = ("auto", "dense", "window", "pyramid")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INF, NAN = float("inf"), float("nan")

# Allowed error: y by value * max|x|; gradients by gradient * max|gradient| + scale * S (see `check`). Half types: or by
# twice the error of the formula evaluated densely in that dtype, plus one ulp, where that is more.
TOLERANCE = {
    torch.float64: {"value": 1e-12, "gradient": 1e-12, "scale": 1e-13},
    torch.float32: {"value": 1e-5, "gradient": 1e-5, "scale": 1e-6},
}


def devices() -> list[str]:
    """cpu, and cuda where there is a card and the library was built for it."""
    built = torch._C._dispatch_has_kernel_for_dispatch_key("contextpool::pool1d", "CUDA")
    return ["cpu", "cuda"] if torch.cuda.is_available() and built else ["cpu"]


def weight_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


class Inputs(NamedTuple):
    x: Tensor
    log_weight: Tensor
    sigma: Tensor

    def leaves(self) -> "Inputs":
        """Detached copies that require gradients, with the strides of the originals."""
        return Inputs(*(t.detach().requires_grad_() for t in self))


def draw_sizes(kind: str, shape: tuple[int, ...], n: int, g: torch.Generator) -> Tensor:
    u = torch.rand(shape, generator=g, dtype=torch.float64)
    if kind == "mixed":
        sizes = torch.exp(math.log(1e-6) + u * math.log(1e12))
        return torch.where(torch.rand(shape, generator=g) < 0.1, torch.tensor(-1.0, dtype=torch.float64), sizes)
    return {
        "proportional": 0.1 * n * u + 0.3,
        "log_uniform": 0.5 * 32**u,
        "huge": 1e3 * 1e3**u,
        "tiny": 1e-6 * 3e5**u,
    }[kind]


def draw_log_weights(kind: str, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    normal = torch.randn(shape, generator=g, dtype=torch.float64)
    if kind == "clusters":  # a light ground with short stretches 40 above it
        heavy = torch.nn.functional.max_pool1d((torch.rand(shape, generator=g) < 0.01).float(), 7, 1, 3) > 0
        return torch.where(heavy, 20.0, -20 + normal.sigmoid())
    if kind == "plus_minus_20":
        return 20 * normal.sign()
    return normal.mul({"equal": 0.0, "spread_1": 1.0, "spread_5": 5.0}[kind]).clamp(-20, 20)


def mask_of(kind: str, n: int) -> Tensor:
    j = torch.arange(n)
    return {
        "none": torch.zeros(n, dtype=torch.bool),
        "left": j < n // 3,
        "right": j >= n - n // 3,
        "middle": (j >= n // 4) & (j < n - n // 4),
        "alternating": j % 2 == 0,
        "everywhere": torch.ones(n, dtype=torch.bool),
    }[kind]


def laid_out(t: Tensor, layout: str) -> Tensor:
    """The same values with other strides; NaN lies between the elements of a slice."""
    if layout == "transposed":
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "sliced":
        view = torch.full([2 * s + 1 for s in t.shape], NAN, dtype=t.dtype, device=t.device)
        view = view[tuple(slice(1, 2 * s + 1, 2) for s in t.shape)]
        return view.copy_(t)
    return t


def make(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    sizes: str = "proportional",
    logits: str = "spread_1",
    mask: str = "none",
    layout: str = "contiguous",
    seed: int = 0,
) -> Inputs:
    """Inputs of shape (batch, tokens, targets, channels), the same for the same arguments."""
    batch, n, m, d = shape
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, n, d, generator=g, dtype=torch.float64)
    log_weight = draw_log_weights(logits, (batch, n), g)
    sigma = draw_sizes(sizes, (batch, m), n, g)
    hidden = mask_of(mask, n)
    log_weight[:, hidden] = -INF
    poison = torch.tensor([NAN, INF, -INF], dtype=torch.float64)
    x[:, hidden] = poison[torch.arange(int(hidden.sum())) % 3][:, None]
    fine = weight_dtype(dtype)
    parts = x.to(dtype), log_weight.to(fine), sigma.to(fine)
    return Inputs(*(laid_out(t.to(device), layout) for t in parts))


def weights(log_weight: Tensor, sigma: Tensor, causal: bool) -> Tensor:
    """p_ij, [..., M, N], in the dtype of sigma: the formula with its support, masks and limits."""
    n, m = log_weight.shape[-1], sigma.shape[-1]
    j = torch.arange(n, device=sigma.device)
    t = (j[n - m :, None] - j).to(sigma.dtype)
    size = sigma[..., None]
    exists = (t == 0) | ((size > 0) & (t * t <= 160 * size * size))
    if causal:
        exists = exists & (t >= 0)
    exists = exists & (log_weight != -INF)[..., None, :]
    ratio = torch.where(exists & (t != 0), t / torch.where(size > 0, size, 1), 0)
    score = torch.where(exists, log_weight[..., None, :] - ratio * ratio / 2, -INF)
    some = exists.any(-1, keepdim=True)
    return torch.where(some, torch.softmax(torch.where(some, score, 0), -1), 0)


def formula(x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool) -> Tensor:
    """The operator densely, as a PyTorch user would write it: weights cast to the dtype of x, one product."""
    live = torch.where((log_weight != -INF)[..., None], x, 0)
    return weights(log_weight, sigma, causal).to(x.dtype) @ live


def gradients(y: Tensor, inputs: Inputs, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.autograd.grad(y, tuple(inputs), dy)


def ulp(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Gap between neighbouring numbers of dtype at |t|."""
    info = torch.finfo(dtype)
    return 2 ** torch.log2(t.abs().clamp(min=info.tiny)).floor() * info.eps


def largest(t: Tensor) -> Tensor:
    """Of each row of the batch."""
    return t.abs().flatten(1).amax(1) if t.numel() else t.new_zeros(t.shape[0])


def check(inputs: Inputs, causal: bool, algorithm: str, dy: Tensor | None = None) -> None:
    """y and the three gradients keep the accuracy contract, row by row of the batch."""
    dtype = inputs.x.dtype
    leaves = inputs.leaves()
    y = contextpool.pool1d(*leaves, causal=causal, algorithm=algorithm)
    if dy is None:
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y)
    got = (y, *gradients(y, leaves, dy))

    exact = Inputs(*(t.double() for t in inputs)).leaves()
    y64 = formula(*exact, causal)
    want = (y64.detach(), *gradients(y64, exact, dy.double()))

    live = torch.where((exact.log_weight != -INF)[..., None], exact.x, 0).detach()
    p = weights(exact.log_weight, exact.sigma, causal).detach()
    n, m = live.shape[1], exact.sigma.shape[1]
    t = torch.arange(n, device=p.device)[n - m :, None] - torch.arange(n, device=p.device)
    size = torch.where(exact.sigma > 0, exact.sigma, INF).detach()
    steep = torch.where(p > 0, p * (t / size[..., None]) ** 2, 0).sum(-1) / size
    s_log_weight = dy.double().norm(dim=-1).amax(1) * live.norm(dim=-1).amax(1)
    scales = (largest(live), 0, s_log_weight, s_log_weight * largest(steep))

    tolerance = TOLERANCE[weight_dtype(dtype)]
    if dtype in (torch.bfloat16, torch.float16):
        dense = inputs.leaves()
        y16 = formula(*dense, causal)
        peer = (y16.detach(), *gradients(y16, dense, dy))
    for k, name in enumerate(("y", "dx", "dlog_weight", "dsigma")):
        if k == 0:
            bound = tolerance["value"] * scales[0]
        else:
            bound = tolerance["gradient"] * largest(want[k]) + tolerance["scale"] * scales[k]
        bound = bound.reshape(-1, *[1] * (want[k].dim() - 1)).clamp(min=torch.finfo(weight_dtype(dtype)).tiny)
        if dtype in (torch.bfloat16, torch.float16):
            error = largest(peer[k].double() - want[k]).reshape(bound.shape)
            bound = torch.maximum(bound, 2 * error) + ulp(want[k], got[k].dtype)
        excess = (got[k].double() - want[k]).abs() - bound
        worst = excess.nan_to_num(nan=INF).argmax()
        assert excess.flatten()[worst] <= 0, (
            f"{name}: {got[k].flatten()[worst]:.9g} instead of {want[k].flatten()[worst]:.9g} at {worst} of "
            f"{tuple(want[k].shape)}; allowed {bound.expand(want[k].shape).flatten()[worst]:.3g}"
        )
