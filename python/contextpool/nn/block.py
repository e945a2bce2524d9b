"""A pre-norm transformer block with a place for ContextPool, or for the depthwise control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._cache import TokenCache
from ._options import check_word
from ._padding import Lengths, real_tokens
from .attention import _WHOLE_ROW, Attention, AttentionCache, Reach
from .context_pool import ContextPool1d, ContextPoolCache
from .depthwise import Depthwise, DepthwiseCache

Mixer = Literal["none", "context_pool", "depthwise"]
Placement = Literal["after_attention", "after_block", "before_attention"]


class BlockCache:
    """What a block remembers of the tokens seen so far: the caches of its parts."""

    def __init__(self) -> None:
        self.attention, self.pool, self.depthwise = AttentionCache(), ContextPoolCache(), DepthwiseCache()

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self.attention.length

    @property
    def rows(self) -> int | None:
        """The batch's size; None before the first step."""
        return self.attention.rows

    def _used(self) -> list[TokenCache]:
        parts: tuple[TokenCache, ...] = (self.attention, self.pool, self.depthwise)
        return [part for part in parts if part.rows is not None]

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens, for speculative decoding."""
        for part in self._used():
            part.crop(length)

    def select(self, rows: Tensor) -> None:
        """Row b becomes what row ``rows[b]`` was (int64 ``[B']``), or the rows that are true stay (bool ``[B]``)."""
        for part in self._used():
            part.select(rows)

    def reorder(self, rows: Tensor) -> None:
        """:meth:`select` under the name that beam search knows."""
        self.select(rows)

    def repeat(self, times: int) -> None:
        """Each row becomes ``times`` equal ones that lie together, as ``torch.repeat_interleave`` orders them."""
        for part in self._used():
            part.repeat(times)


class FeedForward(nn.Module):
    """down(gelu(up(x))), with the exact GELU."""

    def __init__(
        self,
        features: int,
        hidden: int,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(features, hidden, device=device, dtype=dtype)
        self.down = nn.Linear(hidden, features, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(F.gelu(self.up(x)))
        return down


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
        device, dtype: of the parameters.
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
        reach: Reach = _WHOLE_ROW,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_word("TransformerBlock", "mixer", mixer, ("none", "context_pool", "depthwise"))
        places = ("after_attention", "after_block", "before_attention")
        check_word("TransformerBlock", "placement", placement, places)
        if feedforward <= 0:
            raise ValueError(f"TransformerBlock: feedforward must be positive, but is {feedforward}")
        self.placement = None if mixer == "none" else placement
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(features, **kind)
        self.attention = Attention(features, heads, dropout, causal, reach, **kind)
        self.context_pool: ContextPool1d | None = None
        self.depthwise: Depthwise | None = None
        if mixer == "context_pool":
            self.context_pool = ContextPool1d(features, causal=causal, **kind, **(pool or {}))
        elif mixer == "depthwise":
            self.depthwise = Depthwise(features, taps, causal, **kind)
        self.norm2 = nn.LayerNorm(features, **kind)
        self.feedforward = FeedForward(features, feedforward, **kind)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        rotation: Tensor | None = None,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """x [batch, tokens, features] to the same. What padded tokens hold reaches neither the others nor any gradient.

        Args:
            x: features.
            rotation: of rotary positions, from ``Positions.rotation``.
            lengths: how many of each row's first tokens are real, integers ``[batch]``; or
            mask: which tokens are real, ``[batch, tokens]``: bool, or integers 0 and 1; or
            key_padding_mask: which are padding, as ``torch.nn.MultiheadAttention`` takes it.
        """
        real = self._real(x, lengths, mask, key_padding_mask)

        def mix(value: Tensor) -> Tensor:
            if self.context_pool is not None:
                return self.context_pool(value, mask=real)
            assert self.depthwise is not None
            return self.depthwise(value, mask=real)

        return self._run(_without_padding(x, real), lambda value: self.attention(value, rotation, real), mix)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def step(
        self,
        x: Tensor,
        cache: BlockCache,
        rotation: Tensor | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """The next tokens x [batch, new tokens, features] of causal rows, which then are in the cache too: equals the
        last rows of ``forward`` over all of them. mask [batch, new tokens], as for ``forward``."""
        real = self._real(x, None, mask, key_padding_mask)

        def mix(value: Tensor) -> Tensor:
            if self.context_pool is not None:
                return self.context_pool.step(value, cache.pool, real)
            assert self.depthwise is not None
            return self.depthwise.step(value, cache.depthwise, real)

        def attend(value: Tensor) -> Tensor:
            return self.attention.step(value, cache.attention, rotation, real)

        return self._run(_without_padding(x, real), attend, mix)

    def _real(
        self, x: Tensor, lengths: Lengths | None, mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        if x.dim() != 3:
            raise ValueError(f"TransformerBlock: x must be [batch, tokens, features], but is {list(x.shape)}")
        return real_tokens("TransformerBlock", x.shape[:2], x.device, lengths, mask, key_padding_mask)

    def _run(self, x: Tensor, attend: Callable[[Tensor], Tensor], mix: Callable[[Tensor], Tensor]) -> Tensor:
        def at(place: str, value: Tensor) -> Tensor:
            return mix(value) if self.placement == place else value

        attended = attend(at("before_attention", self.norm1(x)))
        middle = x + self.dropout(at("after_attention", attended))
        return at("after_block", middle + self.dropout(self.feedforward(self.norm2(middle))))

    def extra_repr(self) -> str:
        return f"placement={self.placement}"


def _without_padding(x: Tensor, real: Tensor | None) -> Tensor:
    """What is no number in padding would become so in the gradients of the norms, which sum over tokens."""
    return x if real is None else x.masked_fill(~real.unsqueeze(-1), 0)
