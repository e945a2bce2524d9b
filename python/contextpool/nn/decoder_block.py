"""A transformer block of a decoder: one that attends to another row too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ._mixer import Mixer, MixerCache, MixerOptions
from ._options import check_word
from ._padding import Lengths
from .attention import _WHOLE_ROW, Reach
from .block import _ONE_MIXER, Activation, BlockCache, MixerKind, MixOptions, Placement, TransformerBlock, _shared
from .cross_attention import AttentionKind, CrossAttention, CrossMemory
from .mixer import make_mixer, mixer_kinds


class DecoderBlockCache:
    """What a block remembers of the tokens seen so far, and the memory that it attends to."""

    def __init__(self, memory: CrossMemory) -> None:
        self.block, self.cross_mixer, self.memory = BlockCache(), MixerCache(), memory

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self.block.length

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens."""
        self.block.crop(length)
        if self.cross_mixer.rows is not None:
            self.cross_mixer.crop(length)

    def select(self, rows: Tensor) -> None:
        """Row b becomes what row ``rows[b]`` was (int64 ``[B']``), or the rows that are true stay (bool ``[B]``)."""
        self._select(rows)
        self.memory.select(rows)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Rows move among those that share a row of the memory, and all of these stay or go: what beam search does.

        Rows as for :meth:`select`; sentences: the memory's own rows that stay, None where all do. Cheaper than
        :meth:`select`, since the memory stays where it is."""
        self._select(rows)
        if sentences is not None:
            self.memory.select_shared(sentences)

    def _select(self, rows: Tensor) -> None:
        self.block.select(rows)
        if self.cross_mixer.rows is not None:
            self.cross_mixer.select(rows)

    def repeat(self, times: int) -> None:
        """Each row becomes ``times`` equal ones that lie together, as ``torch.repeat_interleave`` orders them."""
        self.block.repeat(times)
        if self.cross_mixer.rows is not None:
            self.cross_mixer.repeat(times)
        self.memory.repeat(times)


class DecoderBlock(TransformerBlock):
    """:class:`TransformerBlock` with a third branch between its two, attention over another row, which has a place of
    its own for a mixer, X:

    ===============  ===================================
    h = A(LN x)      x <- x + O(Attn(h))
    c = LN x         x <- x + X(CrossAttn(c, memory))
    g = C(LN x)      x <- E(x + FF(g))
    ===============  ===================================

    The context of X is c. Parameters: those of the block, ``cross_norm``, ``cross_attention.{q,kv,out}`` and
    ``cross_mixer.*``. Arguments are those of :class:`TransformerBlock`, and

    Args:
        cross_attention: "full", "local" or "area".
        cross_mixer: one of ``mixer_kinds()``, with the numbers of mix and pool.
        cross_pool: options of ContextPool in that mixer, where they are not those of pool.
    """

    def __init__(
        self,
        features: int = 512,
        heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.0,
        causal: bool = True,
        mixer: MixerKind = "none",
        placement: Placement = "after_attention",
        taps: int = 15,
        pool: Mapping[str, Any] | None = None,
        reach: Reach = _WHOLE_ROW,
        mix: MixOptions = _ONE_MIXER,
        *,
        attention_dropout: float | None = None,
        activation_dropout: float = 0.0,
        activation: Activation = "gelu",
        cross_attention: AttentionKind = "full",
        cross_mixer: str = "none",
        cross_pool: Mapping[str, Any] | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(
            features, heads, feedforward, dropout, causal, mixer, placement, taps, pool, reach, mix,
            attention_dropout=attention_dropout, activation_dropout=activation_dropout, activation=activation, **kind,
        )  # fmt: skip
        check_word("DecoderBlock", "cross_mixer", cross_mixer, mixer_kinds())
        of_weights = dropout if attention_dropout is None else attention_dropout
        self.cross_norm = nn.LayerNorm(features, **kind)
        self.cross_attention = CrossAttention(features, heads, of_weights, cross_attention, reach.area_width, **kind)
        self.cross_mixer: Mixer | None = None
        if cross_mixer != "none":
            options = MixerOptions(
                cross_mixer, features, causal, 1, *_shared(cross_mixer, taps, mix), mix.rank, mix.heads, features,
                {**(pool or {}), **(cross_pool or {})},
            )  # fmt: skip
            self.cross_mixer = make_mixer(options, **kind)

    def remember(
        self,
        memory: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> CrossMemory:
        """Keys and values of the row to attend to, ``[batch, tokens, features]``."""
        return self.cross_attention.remember(memory, lengths, mask, key_padding_mask)

    def finish_initialisation(self) -> None:
        """After a model has drawn all parameters by its own rule: each mixer's ``finish_initialisation``."""
        super().finish_initialisation()
        if self.cross_mixer is not None:
            self.cross_mixer.finish_initialisation()

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: CrossMemory, rotation: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """x ``[batch, tokens, features]``, a row for each of the memory's. mask ``[batch, tokens]``: true where a token
        is real; what the others hold reaches neither these nor any gradient."""
        real = self._real(x, None, mask, None)

        def between(middle: Tensor) -> Tensor:
            c = self.cross_norm(middle)
            seen = self.cross_attention(c, memory)
            mixed = seen if self.cross_mixer is None else self.cross_mixer(seen, mask=real, context=c)
            added: Tensor = middle + self.dropout(mixed)
            return added

        return self._forward(x, rotation, real, between)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward  # type: ignore[assignment]

    def step(  # type: ignore[override]
        self, x: Tensor, cache: DecoderBlockCache, rotation: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The next tokens of causal rows, which then are in the cache too: equals the last rows of ``forward`` over all
        of them."""
        real = self._real(x, None, mask, None)

        def between(middle: Tensor) -> Tensor:
            c = self.cross_norm(middle)
            seen = self.cross_attention(c, cache.memory)
            mixed = seen if self.cross_mixer is None else self.cross_mixer.step(seen, cache.cross_mixer, real, context=c)
            added: Tensor = middle + self.dropout(mixed)
            return added

        return self._step(x, cache.block, rotation, real, between)
