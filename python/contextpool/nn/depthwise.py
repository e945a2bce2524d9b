"""The control that stands where ContextPool stands: a depthwise convolution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._cache import TokenCache
from ._padding import real_tokens


class DepthwiseCache(TokenCache):
    """The inputs of a causal convolution seen so far; all are kept, so that the newest can be cropped."""


class Depthwise(nn.Module):
    """Each channel mixes its neighbours with weights that do not depend on the text:

        y_ic = b_c + sum_k w_ck x_(i - left + k)c,   k = 0 .. taps - 1;   left = taps - 1 if causal, else taps // 2

    Parameters: ``weight`` [features, 1, taps], ``bias`` [features].
    """

    def __init__(
        self,
        features: int = 512,
        taps: int = 15,
        causal: bool = False,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if features <= 0 or taps <= 0:
            raise ValueError(f"Depthwise: features and taps must be positive, but are {features} and {taps}")
        if not causal and taps % 2 == 0:
            raise ValueError(f"Depthwise: taps must be odd, to have a middle, unless causal, but are {taps}")
        self.features, self.taps, self.causal = features, taps, causal
        self.weight = nn.Parameter(torch.empty(features, 1, taps, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype))
        bound = 1 / math.sqrt(taps)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, mask: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        """x [batch, tokens, features]; mask [batch, tokens], true where a token is real (key_padding_mask: where it is
        not): the others count as 0."""
        real = real_tokens("Depthwise", x.shape[:2], x.device, None, mask, key_padding_mask)
        if real is not None:
            x = x.masked_fill(~real.unsqueeze(-1), 0)
        right = 0 if self.causal else self.taps // 2
        return self._convolve(F.pad(x, (0, 0, self.taps - 1 - right, right)))

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def step(
        self, x: Tensor, cache: DepthwiseCache, mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """The next tokens of a causal row, which then are in the cache too: equals the last rows of ``forward`` over
        all of them. mask [batch, new tokens], as for ``forward``."""
        if not self.causal:
            raise RuntimeError("Depthwise: only the causal convolution has steps")
        cache.check_rows("Depthwise", x)
        real = real_tokens("Depthwise", x.shape[:2], x.device, None, mask, key_padding_mask)
        if real is not None:
            x = x.masked_fill(~real.unsqueeze(-1), 0)
        seen = min(cache.length, self.taps - 1)
        near = cache.append("features", x)[:, cache.length - seen :]
        cache.length += x.shape[1]
        return self._convolve(F.pad(near, (0, 0, self.taps - 1 - seen, 0)))

    def _convolve(self, padded: Tensor) -> Tensor:
        return F.conv1d(padded.transpose(1, 2), self.weight, self.bias, groups=self.features).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"{self.features}, taps={self.taps}, causal={self.causal}"
