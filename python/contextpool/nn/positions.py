"""How a model knows where a token stands: rotary, learned or sinusoidal positions behind one interface."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import rotary
from ._options import check_word

_BASE = 10000.0


class Positions(nn.Module):
    """One of three kinds of positions.

    - ``rotary`` turns each pair (2k, 2k+1) of a head's queries and keys by the angle p * 10000^(-2k / head features),
      so that a score depends on the distance of two tokens only; adds nothing to the features.
    - ``learned`` adds row p of a table, the parameter ``weight`` [length, features].
    - ``sinusoidal`` adds sin(p f_k) to channel 2k and cos(p f_k) to channel 2k+1, f_k = 10000^(-2k / features).
    """

    def __init__(
        self,
        kind: str = "rotary",
        features: int = 512,
        heads: int = 8,
        length: int = 2048,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_word("Positions", "kind", kind, ("rotary", "learned", "sinusoidal"))
        if heads <= 0 or features <= 0 or features % heads:
            raise ValueError(f"Positions: features must be a multiple of heads, but are {features} and {heads}")
        self.kind, self.features, self.heads, self.length = kind, features, heads, length
        if kind == "rotary" and features // heads % 2:
            raise ValueError(
                "Positions: rotary positions turn pairs of channels, so a head needs an even number, but "
                f"{features} features in {heads} heads are {features // heads} each"
            )
        if kind == "learned":
            if length <= 0:
                raise ValueError(f"Positions: learned positions need a length, but it is {length}")
            self.weight = nn.Parameter(torch.empty(length, features, device=device, dtype=dtype))
            nn.init.normal_(self.weight, 0, 0.02)
        if kind == "sinusoidal" and features % 2:
            raise ValueError(f"Positions: sinusoidal positions need even features, but they are {features}")

    def add(self, x: Tensor, first: int = 0, at: Tensor | None = None) -> Tensor:
        """x [batch, tokens, features] with what positions add. The tokens stand at positions first, first + 1, ...; or
        at those of ``at`` int64 [batch, tokens], each below ``first + tokens``."""
        if self.kind == "rotary":
            return x
        count = x.shape[1]
        if self.kind == "sinusoidal":
            angle = self._angles(first, count, at, self.features, x.device)
            return x + torch.stack((angle.sin(), angle.cos()), -1).flatten(-2).to(x.dtype)
        if first + count > self.length:
            raise ValueError(
                f"Positions: {first + count} tokens, but only {self.length} positions were learned: use shorter rows, "
                "or rotary or sinusoidal positions"
            )
        return x + (self.weight[first : first + count] if at is None else F.embedding(at, self.weight))

    def rotation(self, x: Tensor, first: int = 0, at: Tensor | None = None) -> Tensor | None:
        """The turns of x's tokens, cosines and sines, [2, tokens, head features / 2], or [2, batch, ...] with ``at`` as
        for ``add``. None unless rotary."""
        if self.kind != "rotary":
            return None
        angle = self._angles(first, x.shape[1], at, self.features // self.heads, x.device)
        return torch.stack((angle.cos(), angle.sin())).to(torch.float64 if x.dtype == torch.float64 else torch.float32)

    @staticmethod
    def _angles(first: int, count: int, at: Tensor | None, width: int, device: torch.device) -> Tensor:
        """Positions times frequencies: [tokens, width / 2] or [batch, tokens, width / 2]."""
        frequency = _BASE ** (torch.arange(0, width, 2, dtype=torch.float64, device=device) / -width)
        places = torch.arange(first, first + count, device=device) if at is None else at
        return places.to(torch.float64).unsqueeze(-1) * frequency

    def extra_repr(self) -> str:
        return f"{self.kind}, features={self.features}, heads={self.heads}, length={self.length}"


def rotate(x: Tensor, rotation: Tensor | None) -> Tensor:
    """x [batch, tokens, ..., head features] turned by ``rotation``. Half types are turned in float32."""
    if rotation is None:
        return x
    if x.is_cuda:  # one pass over memory; on the CPU what follows is as fast, and torch.compile fuses it
        return rotary(x, rotation[0], rotation[1])
    shape = (*rotation.shape[1:-1], *(1,) * (x.dim() - 3), rotation.shape[-1])
    cos, sin = rotation[0].view(shape), rotation[1].view(shape)
    even, odd = torch.unflatten(x.to(rotation.dtype), -1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def positions_of(real: Tensor) -> Tensor:
    """Where the tokens of a mask ``[batch, tokens]`` stand: how many real ones come before each. A row has the same
    positions however it is padded."""
    return (real.cumsum(1) - 1).clamp_min(0)
