"""How a model knows where a token stands: rotary, learned or sinusoidal positions behind one interface."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ._options import check_word

_BASE = 10000.0


class Positions(nn.Module):
    """One of three kinds of positions.

    - ``rotary`` turns each pair (2k, 2k+1) of a head's queries and keys by the angle p * 10000^(-2k / head features),
      so that a score depends on the distance of two tokens only; adds nothing to the features.
    - ``learned`` adds row p of a table, the parameter ``weight`` [length, features].
    - ``sinusoidal`` adds sin(p f_k) to channel 2k and cos(p f_k) to channel 2k+1, f_k = 10000^(-2k / features).
    """

    def __init__(self, kind: str = "rotary", features: int = 512, heads: int = 8, length: int = 2048) -> None:
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
            self.weight = nn.Parameter(torch.empty(length, features))
            nn.init.normal_(self.weight, 0, 0.02)
        if kind == "sinusoidal" and features % 2:
            raise ValueError(f"Positions: sinusoidal positions need even features, but they are {features}")

    def add(self, x: Tensor, first: int = 0) -> Tensor:
        """x [batch, tokens, features], whose first token stands at position ``first``: x with what positions add."""
        if self.kind == "rotary":
            return x
        count = x.shape[1]
        if self.kind == "sinusoidal":
            angle = self._angles(first, count, self.features, x.device)
            return x + torch.stack((angle.sin(), angle.cos()), -1).flatten(1).to(x.dtype)
        if first + count > self.length:
            raise ValueError(
                f"Positions: {first + count} tokens, but only {self.length} positions were learned: use shorter rows, "
                "or rotary or sinusoidal positions"
            )
        return x + self.weight[first : first + count]

    def rotation(self, x: Tensor, first: int = 0) -> Tensor | None:
        """The turns of x's tokens, [2, tokens, head features / 2]: cosines and sines. None unless rotary."""
        if self.kind != "rotary":
            return None
        angle = self._angles(first, x.shape[1], self.features // self.heads, x.device)
        return torch.stack((angle.cos(), angle.sin())).to(torch.float64 if x.dtype == torch.float64 else torch.float32)

    @staticmethod
    def _angles(first: int, count: int, width: int, device: torch.device) -> Tensor:
        frequency = _BASE ** (torch.arange(0, width, 2, dtype=torch.float64, device=device) / -width)
        return torch.outer(torch.arange(first, first + count, dtype=torch.float64, device=device), frequency)

    def extra_repr(self) -> str:
        return f"{self.kind}, features={self.features}, heads={self.heads}, length={self.length}"


def rotate(x: Tensor, rotation: Tensor | None) -> Tensor:
    """x [batch, tokens, ..., head features] turned by ``rotation``. Half types are turned in float32."""
    if rotation is None:
        return x
    shape = (rotation.shape[1],) + (1,) * (x.dim() - 3) + (rotation.shape[2],)
    cos, sin = rotation[0].view(shape), rotation[1].view(shape)
    even, odd = x.to(rotation.dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)
