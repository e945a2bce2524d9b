"""The control that stands where ContextPool stands: a depthwise convolution."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Depthwise(nn.Module):
    """Each channel mixes its neighbours with weights that do not depend on the text:

        y_ic = b_c + sum_k w_ck x_(i - left + k)c,   k = 0 .. taps - 1;   left = taps - 1 if causal, else taps // 2

    Parameters: ``weight`` [features, 1, taps], ``bias`` [features].
    """

    def __init__(self, features: int = 512, taps: int = 15, causal: bool = False) -> None:
        super().__init__()
        if features <= 0 or taps <= 0:
            raise ValueError(f"Depthwise: features and taps must be positive, but are {features} and {taps}")
        if not causal and taps % 2 == 0:
            raise ValueError(f"Depthwise: taps must be odd, to have a middle, unless causal, but are {taps}")
        self.features, self.taps, self.causal = features, taps, causal
        self.weight = nn.Parameter(torch.empty(features, 1, taps))
        self.bias = nn.Parameter(torch.zeros(features))
        bound = 1 / math.sqrt(taps)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [batch, tokens, features]; mask [batch, tokens], true where a token exists: the others count as 0."""
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0)
        right = 0 if self.causal else self.taps // 2
        return self._convolve(F.pad(x, (0, 0, self.taps - 1 - right, right)))

    def step(self, x: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """The next tokens of a causal row and the new cache: the last taps - 1 inputs (None at the start)."""
        if not self.causal:
            raise RuntimeError("Depthwise: only the causal convolution has steps")
        if cache is None:
            cache = x.new_zeros(x.shape[0], self.taps - 1, self.features)
        padded = torch.cat((cache, x), 1)
        return self._convolve(padded), padded[:, x.shape[1] :]

    def _convolve(self, padded: Tensor) -> Tensor:
        return F.conv1d(padded.transpose(1, 2), self.weight, self.bias, groups=self.features).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"{self.features}, taps={self.taps}, causal={self.causal}"
