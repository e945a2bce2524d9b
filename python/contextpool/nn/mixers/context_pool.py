"""ContextPool as a mixer. With P(x) = ContextPool1d(x) or ContextPool2d(x), T(x) a short depthwise convolution without
bias where there are taps, else 0, and c as ``residual`` says (``contextpool.nn._residual``):

============== =====================
none           T(x) + P(x)
plain          x + T(x) + P(x)
scale, gated   x + T(x) + c P(x)
============== =====================

Parameters: those of ContextPool, then ``scale``, ``gate.{down,up}.weight`` and ``taps.weight``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._mixer import MixerCache, MixerOptions, without_padding
from .._padding import Lengths, real_tokens
from .._residual import ResidualMixer
from ..context_pool import ContextPool1d, ContextPool2d, _ContextPool
from ..depthwise import Depthwise

Device = torch.device | str | int | None


class _Beside(_ContextPool, ResidualMixer):
    """What rows and maps have in common."""

    taps: Depthwise | None

    def _add_beside(self, o: MixerOptions, device: Device, dtype: torch.dtype | None) -> None:
        self._add_residual(
            "ContextPool", o.residual, o.features, o.rank, o.context_features, o.dims, device=device, dtype=dtype
        )
        self.taps = None
        if o.taps:
            self.taps = Depthwise(
                o.features, o.taps, o.causal, dims=o.dims, bias=False, device=device, dtype=dtype,
                residual="none" if o.residual == "none" else "plain",
            )  # fmt: skip

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self._reset_beside()

    def finish_initialisation(self) -> None:
        self.reset_sizes()
        self._reset_beside()

    def _reset_beside(self) -> None:
        self._reset_residual()
        if self.taps is not None:
            self.taps.reset_parameters()

    def _around(
        self, x: Tensor, pooled: Tensor, beside: Tensor | None, context: Tensor | None, real: Tensor | None
    ) -> Tensor:
        if self.residual == "none":
            return pooled if beside is None else pooled + beside
        return self._apply_residual(x if beside is None else beside, pooled, x, context, real)


class ContextPool1dMixer(ContextPool1d, _Beside):
    """:class:`ContextPool1d` with a residual, with taps beside it, or with both."""

    def __init__(self, o: MixerOptions, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(o.features, causal=o.causal, device=device, dtype=dtype, **o.pool)
        self._add_beside(o, device, dtype)

    def forward(
        self,
        x: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        return_windows: bool = False,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Any:
        real = real_tokens(self.options.who, x.shape[:2], x.device, lengths, mask, key_padding_mask)
        x = without_padding(x, real, 1)
        beside = self.taps(x) if self.taps is not None else None
        if not return_windows:
            return self._around(x, super().forward(x, mask=real), beside, context, real)
        pooled, windows = super().forward(x, mask=real, return_windows=True)
        return self._around(x, pooled, beside, context, real), windows

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
        real = real_tokens(self.options.who, x.shape[:2], x.device, None, mask, key_padding_mask)
        x = without_padding(x, real, 1)
        pooled = super().step(x, cache, real)
        # The pool's step has put the tokens into the cache.
        beside = self.taps.convolve_last(cache, x.shape[1]) if self.taps is not None else None
        return self._around(x, pooled, beside, context, real)


class ContextPool2dMixer(ContextPool2d, _Beside):
    """:class:`ContextPool2d` with a residual, with taps beside it, or with both."""

    def __init__(self, o: MixerOptions, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(o.features, device=device, dtype=dtype, **o.pool)
        self._add_beside(o, device, dtype)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_windows: bool = False, context: Tensor | None = None
    ) -> Any:
        real = real_tokens(self.options.who, (x.shape[0], *x.shape[2:]), x.device, mask=mask)
        x = without_padding(x, real, 2)
        beside = self.taps(x) if self.taps is not None else None
        if not return_windows:
            return self._around(x, super().forward(x, mask=real), beside, context, real)
        pooled, windows = super().forward(x, mask=real, return_windows=True)
        return self._around(x, pooled, beside, context, real), windows

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward


def make_context_pool(
    o: MixerOptions, device: Device = None, dtype: torch.dtype | None = None
) -> ContextPool1d | ContextPool2d:
    paper = o.residual == "none" and not o.taps  # P(x) and nothing else
    if o.dims == 1:
        if paper:
            return ContextPool1d(o.features, causal=o.causal, device=device, dtype=dtype, **o.pool)
        return ContextPool1dMixer(o, device, dtype)
    if paper:
        return ContextPool2d(o.features, device=device, dtype=dtype, **o.pool)
    return ContextPool2dMixer(o, device, dtype)
