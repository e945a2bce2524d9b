"""What a mixer's output M(x) is added to, and how much it counts.

====== ==============================
none   M(x)
plain  x + M(x)
scale  x + s M(x)
gated  x + (s + up(down(h))) M(x)
====== ==============================

with s [features] drawn from +-1/2 at first and up at 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._mixer import Mixer, context_of
from ._options import check_word

RESIDUALS = ("none", "plain", "scale", "gated")
_SCALE = 0.5  # at first, of either sign


class LowRank(nn.Module):
    """up(down(h)), plus a bias that may be given. up starts at 0, down as torch starts a Linear."""

    def __init__(
        self,
        inputs: int,
        rank: int,
        outputs: int,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False, device=device, dtype=dtype)
        self.up = nn.Linear(rank, outputs, bias=False, device=device, dtype=dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        up: Tensor = self.up(self.down(h))
        return up if bias is None else up + bias.to(up.dtype)

    def reset_parameters(self) -> None:
        self.down.reset_parameters()
        nn.init.zeros_(self.up.weight)


class ResidualMixer(Mixer):
    """A mixer with such a residual. Parameters: ``scale``, ``gate.down.weight``, ``gate.up.weight``."""

    scale: Tensor | None
    gate: LowRank | None

    def _add_residual(
        self,
        who: str,
        kind: str,
        features: int,
        rank: int,
        context_features: int,
        dims: int,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_word(who, "residual", kind, RESIDUALS)
        if kind == "gated" and rank <= 0:
            raise ValueError(f"{who}: rank must be positive, but is {rank}")
        self.residual, self.dims, self._who, self._context_features = kind, dims, who, context_features or features
        self.scale = self.gate = None
        if kind in ("scale", "gated"):
            self.scale = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
            nn.init.uniform_(self.scale, -_SCALE, _SCALE)
        if kind == "gated":
            self.gate = LowRank(self._context_features, rank, features, device, dtype)

    def _apply_residual(
        self, base: Tensor, mixed: Tensor, x: Tensor, context: Tensor | None, real: Tensor | None
    ) -> Tensor:
        """M(x), x + M(x) and so on, with ``base`` in place of the x that is added to: x, or x and more. All with 0 at
        padded tokens."""
        if self.residual == "none":
            return mixed
        if self.scale is None:
            return base + mixed
        coefficient = self.scale
        if self.gate is not None:
            h = context_of(self._who, context, x, real, self._context_features, self.dims)
            coefficient = self.gate(h, coefficient)
        if self.dims == 2:
            coefficient = coefficient.movedim(-1, 1) if self.gate is not None else coefficient.view(-1, 1, 1)
        return base + coefficient.to(base.dtype) * mixed

    def _reset_residual(self) -> None:
        if self.scale is not None:
            nn.init.uniform_(self.scale, -_SCALE, _SCALE)
        if self.gate is not None:
            self.gate.reset_parameters()
