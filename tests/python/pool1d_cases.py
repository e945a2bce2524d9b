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


def weights(log_weight: Tensor, sigma: Tensor, causal: bool, positions: Tensor | None = None) -> Tensor:
    """p_ij, [..., M, N], in the dtype of sigma: the formula with its support, masks and limits. The targets are the
    last M tokens, or those at `positions`."""
    t = distances(log_weight, sigma, positions).to(sigma.dtype)
    size = sigma[..., None]
    exists = (t == 0) | ((size > 0) & (t * t <= 160 * size * size))
    if causal:
        exists = exists & (t >= 0)
    exists = exists & (log_weight != -INF)[..., None, :]
    ratio = torch.where(exists & (t != 0), t / torch.where(size > 0, size, 1), 0)
    score = torch.where(exists, log_weight[..., None, :] - ratio * ratio / 2, -INF)
    some = exists.any(-1, keepdim=True)
    return torch.where(some, torch.softmax(torch.where(some, score, 0), -1), 0)


def distances(log_weight: Tensor, sigma: Tensor, positions: Tensor | None) -> Tensor:
    """i - j, [M, N]."""
    n, m = log_weight.shape[-1], sigma.shape[-1]
    j = torch.arange(n, device=sigma.device)
    return (j[n - m :] if positions is None else positions)[:, None] - j


def formula(x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool, positions: Tensor | None = None) -> Tensor:
    """The operator densely, as a PyTorch user would write it: weights cast to the dtype of x, one product."""
    live = torch.where((log_weight != -INF)[..., None], x, 0)
    return weights(log_weight, sigma, causal, positions).to(x.dtype) @ live


def gradients(y: Tensor, inputs: Inputs, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.autograd.grad(y, tuple(inputs), dy)


def ulp(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Gap between neighbouring numbers of dtype at |t|."""
    info = torch.finfo(dtype)
    return 2 ** torch.log2(t.abs().clamp(min=info.tiny)).floor() * info.eps


def largest(t: Tensor) -> Tensor:
    """Of each row of the batch."""
    return t.abs().flatten(1).amax(1) if t.numel() else t.new_zeros(t.shape[0])


class Reference:
    """The formula in float64 at some targets, and how far from it the contract of docs/accuracy.md lets a result be."""

    def __init__(self, inputs: Inputs, causal: bool, dy: Tensor, positions: Tensor | None) -> None:
        """`inputs.sigma` and `dy` are those of the targets looked at, `positions` where they are (None: at the end)."""
        dtype = inputs.x.dtype
        exact = Inputs(*(t.double() for t in inputs)).leaves()
        y = formula(*exact, causal, positions)
        self.want = (y.detach(), *gradients(y, exact, dy.double()))

        live = torch.where((exact.log_weight != -INF)[..., None], exact.x, 0).detach()
        p = weights(exact.log_weight, exact.sigma, causal, positions).detach()
        size = torch.where(exact.sigma > 0, exact.sigma, INF).detach()[..., None]
        steep = torch.where(p > 0, (distances(exact.log_weight, exact.sigma, positions) / size) ** 2, 0) / size
        s_log_weight = dy.double().norm(dim=-1).amax(1) * live.norm(dim=-1).amax(1)
        scales = (largest(live), 0, s_log_weight, s_log_weight * largest((p * steep).sum(-1)))

        tolerance = TOLERANCE[weight_dtype(dtype)]
        bounds = [tolerance["value"] * scales[0]]
        bounds += [tolerance["gradient"] * largest(self.want[k]) + tolerance["scale"] * scales[k] for k in (1, 2, 3)]
        self.half = dtype in (torch.bfloat16, torch.float16)
        if self.half:
            dense = inputs.leaves()
            y16 = formula(*dense, causal, positions)
            peer = (y16.detach(), *gradients(y16, dense, dy))
            # Where PyTorch's own gradient is NaN or infinite (sizes near 0), it allows nothing.
            errors = [(a.double() - b).nan_to_num(0, 0, 0) for a, b in zip(peer, self.want)]
            bounds = [torch.maximum(bound, 2 * largest(error)) for bound, error in zip(bounds, errors)]
        if self.half and inputs.x.is_cuda:  # its matrix units round each score
            score = (dy.double() @ live.mT).abs()
            change = p * (score + (p * score).sum(-1, keepdim=True)) * torch.finfo(dtype).eps / 2
            bounds[2] = torch.maximum(bounds[2], largest(change.sum(-2)))
            bounds[3] = torch.maximum(bounds[3], largest((change * steep).sum(-1)))
        least = torch.finfo(weight_dtype(dtype)).tiny
        self.bounds = [b.clamp(min=least).reshape(-1, *[1] * (w.dim() - 1)) for b, w in zip(bounds, self.want)]

    def allowed(self, k: int, dtype: torch.dtype) -> Tensor:
        """The error that result k (y, dx, dlog_weight, dsigma) of that dtype may have, element by element."""
        bound = self.bounds[k] + ulp(self.want[k], dtype) if self.half else self.bounds[k]
        return bound.expand(self.want[k].shape)

    def ratios(self, got: tuple[Tensor, ...]) -> list[float]:
        """The largest error of each result, over what is allowed."""
        errors = ((value.double() - want).abs() for value, want in zip(got, self.want))
        ratios = (error / self.allowed(k, got[k].dtype) for k, error in enumerate(errors))
        return [ratio.nan_to_num(nan=INF).max().item() for ratio in ratios]

    def check(self, got: tuple[Tensor, ...]) -> None:
        for k, name in enumerate(("y", "dx", "dlog_weight", "dsigma")):
            value, want, allowed = got[k], self.want[k], self.allowed(k, got[k].dtype)
            excess = (value.double() - want).abs() - allowed
            worst = excess.nan_to_num(nan=INF).argmax()
            assert excess.flatten()[worst] <= 0, (
                f"{name}: {value.flatten()[worst]:.9g} instead of {want.flatten()[worst]:.9g} at {worst} of "
                f"{tuple(want.shape)}; allowed {allowed.flatten()[worst]:.3g}"
            )


def check(
    inputs: Inputs, causal: bool, algorithm: str, dy: Tensor | None = None, visited: Tensor | None = None
) -> None:
    """y and the three gradients keep the accuracy contract, row by row of the batch. For long rows the targets that are
    `visited` alone: y and dsigma there, and the gradients where dy is 0 elsewhere."""
    leaves = inputs.leaves()
    y = contextpool.pool1d(*leaves, causal=causal, algorithm=algorithm)
    if dy is None:
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y)
    if visited is None:
        Reference(inputs, causal, dy, None).check((y, *gradients(y, leaves, dy)))
        return
    part = Inputs(inputs.x, inputs.log_weight, inputs.sigma[:, visited])
    positions = visited + inputs.x.shape[1] - inputs.sigma.shape[1]
    dx, dlog_weight, dsigma = gradients(y, leaves, torch.zeros_like(dy).index_copy_(1, visited, dy[:, visited]))
    got = y[:, visited], dx, dlog_weight, dsigma[:, visited]
    Reference(part, causal, dy[:, visited], positions).check(got)
