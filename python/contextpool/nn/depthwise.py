"""A depthwise convolution. Of 15 taps, the control that stands where ContextPool stands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import short_convolution
from ._cache import TokenCache
from ._mixer import MixerCache, MixerOptions, check_shape, last_tokens, tokens_of, without_padding
from ._padding import real_tokens
from ._residual import ResidualMixer


class DepthwiseCache(MixerCache):
    """The inputs of a causal convolution seen so far; all are kept, so that the newest can be cropped."""


class Depthwise(ResidualMixer):
    """Each channel mixes its neighbours with weights that do not depend on the text:

        y_ic = b_c + sum_k w_ck x_(i - left + k)c,   k = 0 .. taps - 1;   left = taps - 1 if causal, else taps // 2

    On maps ``[B, C, H, W]`` (dims 2) a square of taps x taps. residual: "none", "plain" (x + y), "scale" (x + s y) or
    "gated" (x + (s + up(down(h))) y, of this rank and a context h of context_features, features if 0).

    Parameters: ``weight`` [features, 1, taps] or [features, 1, taps, taps], ``bias`` [features], and those of the
    residual: ``scale`` [features], ``gate.{down,up}.weight``.
    """

    def __init__(
        self,
        features: int = 512,
        taps: int = 15,
        causal: bool = False,
        *,
        dims: int = 1,
        bias: bool = True,
        residual: str = "none",
        rank: int = 15,
        context_features: int = 0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if features <= 0 or taps <= 0:
            raise ValueError(f"Depthwise: features and taps must be positive, but are {features} and {taps}")
        if dims not in (1, 2):
            raise ValueError(f"Depthwise: dims must be 1 (rows) or 2 (maps), but is {dims}")
        if causal and dims == 2:
            raise ValueError("Depthwise: a map has no order, so it cannot be causal")
        if not causal and taps % 2 == 0:
            raise ValueError(f"Depthwise: taps must be odd, to have a middle, unless causal, but are {taps}")
        self.features, self.taps, self.causal = features, taps, causal
        self.weight = nn.Parameter(torch.empty(features, 1, *[taps] * dims, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype)) if bias else None
        self._reset_taps()
        self._add_residual("Depthwise", residual, features, rank, context_features, dims, device, dtype)

    def _reset_taps(self) -> None:
        bound = 1 / math.sqrt(self.weight[0].numel())
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def reset_parameters(self) -> None:
        """Weights uniform within +-1 / sqrt(taps of a channel), bias 0."""
        self._reset_taps()
        self._reset_residual()

    def finish_initialisation(self) -> None:
        self._reset_residual()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """x [batch, tokens, features]; mask [batch, tokens], true where a token is real (key_padding_mask: where it is
        not): the others count as 0. For maps, x [batch, features, height, width] and mask [batch, height, width]."""
        check_shape("Depthwise", x, self.features, self.dims)
        real = real_tokens("Depthwise", tokens_of(x, self.dims), x.device, None, mask, key_padding_mask)
        x = without_padding(x, real, self.dims)
        right = 0 if self.causal else self.taps // 2
        if self.dims == 2:
            mixed = F.conv2d(x, self.weight, self.bias, padding=right, groups=self.features)
            return self._apply_residual(x, mixed, x, context, real)
        return self._finish(x, self._convolve_rows(x, self.taps - 1 - right), context, real)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def step(
        self,
        x: Tensor,
        cache: MixerCache,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """The next tokens of a causal row, which then are in the cache too: equals the last rows of ``forward`` over
        all of them. mask [batch, new tokens], as for ``forward``."""
        if not self.causal:
            raise RuntimeError("Depthwise: only the causal convolution has steps")
        check_shape("Depthwise", x, self.features, self.dims)
        cache.check_rows("Depthwise", x)
        real = real_tokens("Depthwise", x.shape[:2], x.device, None, mask, key_padding_mask)
        x = without_padding(x, real, self.dims)
        cache.append("features", x)
        cache.length += x.shape[1]
        return self._finish(x, self.convolve_last(cache, x.shape[1]), context, real)

    def convolve_last(self, cache: TokenCache, tokens: int) -> Tensor:
        """The convolution, with a plain residual but no other, at the last tokens of those that a cache holds as
        "features"."""
        before = self.taps - 1
        return self._convolve_rows(last_tokens(cache, tokens, before), before)[:, before:]

    # The operator adds a plain residual too; _finish adds the others.
    @property
    def _adds_x(self) -> bool:
        return self.residual == "plain"

    def _convolve_rows(self, x: Tensor, left: int) -> Tensor:
        return short_convolution(x, self.weight.squeeze(1), self.bias, left, self._adds_x)

    def _finish(self, x: Tensor, mixed: Tensor, context: Tensor | None, real: Tensor | None) -> Tensor:
        return mixed if self._adds_x else self._apply_residual(x, mixed, x, context, real)

    def extra_repr(self) -> str:
        return f"{self.features}, taps={self.taps}, causal={self.causal}"


def make_depthwise(
    o: MixerOptions, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
) -> Depthwise:
    return Depthwise(
        o.features, o.taps, o.causal, dims=o.dims, residual=o.residual, rank=o.rank,
        context_features=o.context_features, device=device, dtype=dtype,
    )  # fmt: skip
