"""The mixer that leaves x as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from .._mixer import Mixer, MixerCache, MixerOptions


class Unmixed(Mixer):
    """x."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        return x

    def step(
        self, x: Tensor, cache: MixerCache, mask: Tensor | None = None, *, context: Tensor | None = None
    ) -> Tensor:
        return x


def make_none(
    o: MixerOptions, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
) -> Unmixed:
    return Unmixed()
