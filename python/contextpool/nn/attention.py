"""Multi-head self-attention on PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .positions import rotate


@dataclasses.dataclass
class AttentionCache:
    """Keys and values of the tokens seen so far, [batch, heads, tokens, head features]."""

    keys: Tensor | None = None
    values: Tensor | None = None


class Attention(nn.Module):
    """out(softmax(q k^T / sqrt(head features)) v) with q, k, v = qkv(x).

    Args:
        features: channels of a token.
        heads: they divide the features.
        dropout: of the attention weights.
        causal: a token sees itself and those before it.
    """

    def __init__(self, features: int = 512, heads: int = 8, dropout: float = 0.0, causal: bool = False) -> None:
        super().__init__()
        if heads <= 0 or features <= 0 or features % heads:
            raise ValueError(f"Attention: features must be a multiple of heads, but are {features} and {heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"Attention: dropout must be in [0, 1), but is {dropout}")
        self.features, self.heads, self.dropout, self.causal = features, heads, dropout, causal
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)

    def forward(self, x: Tensor, rotation: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """x [batch, tokens, features]; mask [batch, tokens], true where a token exists: the others are seen by no one,
        whatever they hold."""
        if mask is None:
            return self._attend(*self._project(x, rotation), None, self.causal)
        # A weight of 0 times a value that is no number would be no number.
        q, k, v = self._project(x.masked_fill(~mask.unsqueeze(-1), 0), rotation)
        seen = mask[:, None, None, :]
        if self.causal:
            seen = seen & _causal_mask(x.shape[1], x.shape[1], x.device)
        return self._attend(q, k, v, seen, False)

    def step(self, x: Tensor, cache: AttentionCache, rotation: Tensor | None = None) -> Tensor:
        """The next tokens x [batch, new tokens, features] of a causal row, after those in the cache, which they join.
        Equals the last rows of ``forward`` over all of them."""
        if not self.causal:
            raise RuntimeError("Attention: only causal attention has steps")
        q, k, v = self._project(x, rotation)
        first = cache.keys is None
        if not first:
            k, v = torch.cat((cache.keys, k), 2), torch.cat((cache.values, v), 2)
        cache.keys, cache.values = k, v
        mask = None if first or x.shape[1] == 1 else _causal_mask(x.shape[1], k.shape[2], x.device)
        return self._attend(q, k, v, mask, first)

    def _project(self, x: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k = rotate(qkv[:, :, :2], rotation).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), qkv[:, :, 2].transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0, causal)
        return self.out(y.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dropout={self.dropout}, causal={self.causal}"


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """[queries, keys], true where the key is not after the query; the last query stands at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
