"""A pre-norm transformer block with a place for ContextPool, or for the depthwise control."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, arange, nn

from ._options import check_word
from .attention import Attention, AttentionCache, Reach
from .context_pool import ContextPool1d, ContextPoolCache
from .depthwise import Depthwise

Mixer = Literal["none", "context_pool", "depthwise"]
Placement = Literal["after_attention", "after_block", "before_attention"]


@dataclasses.dataclass
class BlockCache:
    """What a block remembers of the tokens seen so far."""

    attention: AttentionCache = dataclasses.field(default_factory=AttentionCache)
    pool: ContextPoolCache = dataclasses.field(default_factory=ContextPoolCache)
    depthwise: Tensor | None = None


class FeedForward(nn.Module):
    """down(gelu(up(x))), with the exact GELU."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden)
        self.down = nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class TransformerBlock(nn.Module):
    """With Attn the attention on LayerNorm(x), Mix the mixer and FF the feed-forward, each branch followed by dropout:

    =================  =================================================
    mixer none         x <- x + Attn(LN x);       x <- x + FF(LN x)
    after_attention    x <- x + Mix(Attn(LN x));  x <- x + FF(LN x)
    after_block        x <- x + Attn(LN x);       x <- Mix(x + FF(LN x))
    before_attention   x <- x + Attn(Mix(LN x));  x <- x + FF(LN x)
    =================  =================================================

    Args:
        features: channels of a token.
        heads: attention heads; they divide the features.
        feedforward: channels inside the feed-forward branch.
        dropout: of the attention weights and of each branch.
        causal: a token depends on itself and those before it only.
        mixer: "none", "context_pool" or "depthwise".
        placement: where the mixer stands.
        taps: of the depthwise control.
        pool: options of :class:`ContextPool1d` other than features and causal, by name.
        reach: of the attention; the whole row unless given.
    """

    def __init__(
        self,
        features: int = 512,
        heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.0,
        causal: bool = False,
        mixer: Mixer = "none",
        placement: Placement = "after_attention",
        taps: int = 15,
        pool: Mapping[str, Any] | None = None,
        reach: Reach = Reach(),
    ) -> None:
        super().__init__()
        check_word("TransformerBlock", "mixer", mixer, ("none", "context_pool", "depthwise"))
        places = ("after_attention", "after_block", "before_attention")
        check_word("TransformerBlock", "placement", placement, places)
        if feedforward <= 0:
            raise ValueError(f"TransformerBlock: feedforward must be positive, but is {feedforward}")
        self.placement = None if mixer == "none" else placement
        self.norm1 = nn.LayerNorm(features)
        self.attention = Attention(features, heads, dropout, causal, reach)
        self.context_pool = ContextPool1d(features, causal=causal, **(pool or {})) if mixer == "context_pool" else None
        self.depthwise = Depthwise(features, taps, causal) if mixer == "depthwise" else None
        self.norm2 = nn.LayerNorm(features)
        self.feedforward = FeedForward(features, feedforward)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, rotation: Tensor | None = None, lengths: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x [batch, tokens, features] to the same.

        Args:
            x: features.
            rotation: of rotary positions, from ``Positions.rotation``.
            lengths: how many of each row's first tokens are real, int64 ``[batch]``; or
            mask: which tokens are real, bool ``[batch, tokens]``. What padded tokens hold reaches neither the others nor
                any gradient.
        """
        if lengths is not None:
            if mask is not None:
                raise ValueError("TransformerBlock: lengths and mask say the same thing; give one of them")
            mask = arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
        if mask is not None:
            # What is no number in padding would become so in the gradients of the norms, which sum over tokens.
            x = x.masked_fill(~mask.unsqueeze(-1), 0)

        def mix(value: Tensor) -> Tensor:
            return (self.context_pool or self.depthwise)(value, mask=mask)

        return self._run(x, lambda value: self.attention(value, rotation, mask), mix)

    def step(self, x: Tensor, cache: BlockCache, rotation: Tensor | None = None) -> Tensor:
        """The next tokens of causal rows, which then are in the cache too: equals the last rows of ``forward`` over all
        of them."""

        def mix(value: Tensor) -> Tensor:
            if self.context_pool is not None:
                return self.context_pool.step(value, cache.pool)
            value, cache.depthwise = self.depthwise.step(value, cache.depthwise)
            return value

        return self._run(x, lambda value: self.attention.step(value, cache.attention, rotation), mix)

    def _run(self, x: Tensor, attend: Callable[[Tensor], Tensor], mix: Callable[[Tensor], Tensor]) -> Tensor:
        def at(place: str, value: Tensor) -> Tensor:
            return mix(value) if self.placement == place else value

        attended = attend(at("before_attention", self.norm1(x)))
        middle = x + self.dropout(at("after_attention", attended))
        return at("after_block", middle + self.dropout(self.feedforward(self.norm2(middle))))

    def extra_repr(self) -> str:
        return f"placement={self.placement}"
