"""Canon layers (Allen-Zhu 2025): a short depthwise convolution without bias, with a residual."""

from __future__ import annotations

import torch

from .._mixer import MixerOptions
from ..depthwise import Depthwise


class Canon(Depthwise):
    """``y_i = x_i + sum_k w_k x_(i - left + k)``, whose weights start uniform within +-1 / sqrt(taps), as torch starts
    convolutions, whatever the model does with its other parameters. Parameters: ``weight`` [features, 1, taps]."""

    def finish_initialisation(self) -> None:
        self.reset_parameters()


def make_canon(
    o: MixerOptions, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None
) -> Canon:
    if o.residual != "plain":
        raise ValueError(f'canon: the residual is plain, but was to be "{o.residual}"; depthwise has the others')
    return Canon(
        o.features, o.taps, o.causal, dims=o.dims, bias=False, residual=o.residual, device=device, dtype=dtype
    )
