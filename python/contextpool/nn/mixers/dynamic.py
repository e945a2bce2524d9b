"""Dynamic short convolutions (Sieberling et al. 2026): taps that depend on the context, with a residual."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops import dynamic_convolution
from .._mixer import Mixer, MixerCache, MixerOptions, check_shape, context_of, last_tokens, tokens_of, without_padding
from .._padding import real_tokens
from .._residual import LowRank


class Dynamic(Mixer):
    """``y_i = x_i + sum_k (w_k + v_k(h_i)) x_(i - left + k)`` with h the context.

    ``w_k`` [features] is the same for all tokens; ``v_k`` is of low rank, ``v(h) = up(down(h))``, for each channel, or,
    with heads, one linear function of h for each slice of the channels. v starts at 0 and w uniform within
    +-1 / sqrt(taps), whatever the model does with its other parameters. On maps, k runs over a square of taps x taps,
    row by row.

    Parameters: ``weight`` [features, 1, taps] or [features, 1, taps, taps]; ``coefficients.down.weight`` [rank, context
    features] and ``coefficients.up.weight`` [K features, rank] (tap k, channel c in row k features + c), K taps in all;
    or, with heads, ``coefficients.weight`` [K heads, context features].
    """

    def __init__(
        self,
        o: MixerOptions,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if o.features <= 0:
            raise ValueError(f"dynamic: features must be positive, but are {o.features}")
        if o.residual != "plain":
            raise ValueError(f'dynamic: the residual is plain, but was to be "{o.residual}"')
        if not o.causal and o.taps % 2 == 0:
            raise ValueError(f"dynamic: taps must be odd, to have a middle, unless causal, but are {o.taps}")
        if o.rank <= 0:
            raise ValueError(f"dynamic: rank must be positive, but is {o.rank}")
        if o.heads < 0 or (o.heads > 0 and o.features % o.heads):
            raise ValueError(f"dynamic: heads must divide the {o.features} features, or be 0, but are {o.heads}")
        self.features, self.taps, self.causal, self.dims, self.heads = o.features, o.taps, o.causal, o.dims, o.heads
        self.context_features = o.context_features or o.features
        self.all_taps: int = o.taps**o.dims
        self.weight = nn.Parameter(torch.empty(o.features, 1, *[o.taps] * o.dims, device=device, dtype=dtype))
        self.coefficients: nn.Linear | LowRank
        if o.heads:
            outputs = self.all_taps * o.heads
            self.coefficients = nn.Linear(self.context_features, outputs, bias=False, device=device, dtype=dtype)
        else:
            outputs = self.all_taps * o.features
            self.coefficients = LowRank(self.context_features, o.rank, outputs, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.all_taps)
        nn.init.uniform_(self.weight, -bound, bound)
        if isinstance(self.coefficients, LowRank):
            self.coefficients.reset_parameters()
        else:
            nn.init.zeros_(self.coefficients.weight)

    def finish_initialisation(self) -> None:
        self.reset_parameters()

    def forward(self, x: Tensor, *, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        check_shape("dynamic", x, self.features, self.dims)
        real = real_tokens("dynamic", tokens_of(x, self.dims), x.device, mask=mask)
        x = without_padding(x, real, self.dims)
        h = context_of("dynamic", context, x, real, self.context_features, self.dims)
        right = 0 if self.causal else self.taps // 2
        left = self.taps - 1 - right
        if self._has_operator(x):
            return self._convolve(x, h, left)
        if self.dims == 1:
            return x + self._mix(F.pad(x, (0, 0, left, right)), h)
        return x + self._mix(F.pad(x, (left, right, left, right)).movedim(1, -1), h).movedim(-1, 1)

    def step(
        self, x: Tensor, cache: MixerCache, mask: Tensor | None = None, *, context: Tensor | None = None
    ) -> Tensor:
        if not self.causal:
            raise ValueError("dynamic: only the causal convolution has steps")
        check_shape("dynamic", x, self.features, self.dims)
        cache.check_rows("dynamic", x)
        real = real_tokens("dynamic", x.shape[:2], x.device, mask=mask)
        x = without_padding(x, real, self.dims)
        h = context_of("dynamic", context, x, real, self.context_features, self.dims)
        cache.append("features", x)
        cache.length += x.shape[1]
        near = last_tokens(cache, x.shape[1], self.taps - 1)
        return self._convolve(near, h, self.taps - 1) if self._has_operator(x) else x + self._mix(near, h)

    def _has_operator(self, x: Tensor) -> bool:
        """Rows of low rank, where it has kernels."""
        return self.dims == 1 and not self.heads and (x.is_cpu or x.is_cuda or x.is_meta)

    def _convolve(self, x: Tensor, h: Tensor, left: int) -> Tensor:
        """The result for the last tokens of x, those of h, by our operator."""
        assert isinstance(self.coefficients, LowRank)
        up = torch.unflatten(self.coefficients.up.weight, 0, (self.taps, self.features))
        inner = self.coefficients.down(h)
        return dynamic_convolution(x, inner, up, self.weight.squeeze(1), left, residual=True)

    def _shifted(self, padded: Tensor, like: Tensor, k: int) -> Tensor:
        """x_(i - left + k) for all i, features last, of x with what the taps need around it, features last."""
        if self.dims == 1:
            return padded[:, k : k + like.shape[1]]
        row, column = divmod(k, self.taps)
        return padded[:, row : row + like.shape[1], column : column + like.shape[2]]

    def _mix(self, padded: Tensor, h: Tensor) -> Tensor:
        """The sum over k; h and the result features last."""
        weights = self.weight.flatten(1)  # [features, K]
        low_rank = self.coefficients if isinstance(self.coefficients, LowRank) else None
        inner = low_rank.down(h) if low_rank is not None else self.coefficients(h)
        total = None
        for k in range(self.all_taps):
            x, weight = self._shifted(padded, h, k), weights[:, k]
            if low_rank is not None:
                up = low_rank.up.weight[k * self.features : (k + 1) * self.features]
                term = F.linear(inner, up, weight).to(x.dtype) * x
            else:
                v = inner[..., k * self.heads : (k + 1) * self.heads].unsqueeze(-1)
                coefficient = (torch.unflatten(weight, 0, (self.heads, -1)) + v).to(x.dtype)
                term = (coefficient * torch.unflatten(x, -1, (self.heads, -1))).flatten(-2)
            total = term if total is None else total + term
        assert total is not None
        return total

    def extra_repr(self) -> str:
        return f"{self.features}, taps={self.taps}, causal={self.causal}, heads={self.heads}"


def make_dynamic(
    o: MixerOptions, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
) -> Dynamic:
    return Dynamic(o, device, dtype)
