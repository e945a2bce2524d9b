"""A pre-norm transformer block with places for local mixers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._cache import TokenCache
from ._mixer import Mixer, MixerCache, MixerOptions, without_padding
from ._options import check_word
from ._padding import Lengths, real_tokens
from .attention import _WHOLE_ROW, Attention, AttentionCache, Reach
from .context_pool import ContextPool1d, Windows
from .depthwise import Depthwise
from .mixer import make_mixer, mixer_kinds, parse_places

PLACES = "ABOCDE"  #: the places of a block, in the order in which a token passes them
#: the names of single places
PLACEMENTS = {"after_attention": "O", "after_block": "E", "before_attention": "A"}
MixerKind = Literal["none", "context_pool", "depthwise", "canon", "dynamic"]
Activation = Literal["gelu", "relu"]
Placement = Literal["after_attention", "after_block", "before_attention"]


@dataclasses.dataclass(frozen=True)
class MixOptions:
    """Which mixers stand where, and the numbers that they share.

    Args:
        places: ``"A=canon,C=canon,O=context_pool"``; empty: what mixer and placement say.
        taps: of canon and dynamic.
        residual: of depthwise and context_pool: "none", "plain", "scale" or "gated".
        rank: of what depends on the context: in dynamic, and in a gated residual.
        heads: of dynamic; 0: low rank.
        pool_taps: of a short convolution beside context_pool; 0: none.
    """

    places: str = ""
    taps: int = 4
    residual: str = "none"
    rank: int = 15
    heads: int = 0
    pool_taps: int = 0


_ONE_MIXER = MixOptions()
Between = Callable[[Tensor], Tensor]  # what happens to x between the two branches of a block


class BlockCache:
    """What a block remembers of the tokens seen so far: the caches of its parts."""

    def __init__(self) -> None:
        self.attention = AttentionCache()
        self.mixers = {place: MixerCache() for place in PLACES}

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        return self.attention.length

    @property
    def rows(self) -> int | None:
        """The batch's size; None before the first step."""
        return self.attention.rows

    def _used(self) -> list[TokenCache]:
        parts: tuple[TokenCache, ...] = (self.attention, *self.mixers.values())
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
    """down(act(up(x))), with the exact GELU or ReLU, and dropout after it."""

    def __init__(
        self,
        features: int,
        hidden: int,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_word("FeedForward", "activation", activation, ("gelu", "relu"))
        if not 0 <= dropout < 1:
            raise ValueError(f"FeedForward: dropout must be in [0, 1), but is {dropout}")
        self.activation, self.dropout = activation, dropout
        self.up = nn.Linear(features, hidden, device=device, dtype=dtype)
        self.down = nn.Linear(hidden, features, device=device, dtype=dtype)

    def forward(self, x: Tensor, mix: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """mix: what becomes of up(x)."""
        up = self.up(x) if mix is None else mix(self.up(x))
        active = F.relu(up) if self.activation == "relu" else F.gelu(up)
        down: Tensor = self.down(F.dropout(active, self.dropout, self.training) if self.dropout > 0 else active)
        return down


class TransformerBlock(nn.Module):
    """With Attn the attention, FF the feed-forward, and A, B, O, C, D, E the mixers of those places, or nothing:

    ================  =====================  ==================================================
    h = A(LN x)       x <- x + O(Attn(h))    Attn(h) = out(softmax(q k^T) v), q, k, v = B(qkv(h))
    g = C(LN x)       x <- E(x + FF(g))      FF(g) = down(act(D(up(g))))
    ================  =====================  ==================================================

    each branch followed by dropout, act the exact GELU or ReLU. The context of B and O is h, that of D is g; A, C and E
    have their own input. Three single places have names, for ``placement``: before_attention = A, after_attention = O,
    after_block = E.

    A block with a single mixer has its parameters under its kind: ``context_pool.*``, ``depthwise.*``, ``canon.*``,
    ``dynamic.*``. A block with several has each under its place: ``mixers.A.*``, ``mixers.C.*``.

    Args:
        features: channels of a token.
        heads: attention heads; they divide the features.
        feedforward: channels inside the feed-forward branch.
        dropout: of each branch, and of the attention weights unless attention_dropout says otherwise.
        causal: a token depends on itself and those before it only.
        mixer: one of ``mixer_kinds()``, in one place.
        placement: where that mixer stands.
        taps: of depthwise.
        pool: options of :class:`ContextPool1d` other than features and causal, by name.
        reach: of the attention; the whole row unless given.
        mix: mixers in several places, and what they share.
        attention_dropout: of the attention weights, where it is not ``dropout``.
        activation_dropout: inside the feed-forward branch.
        activation: "gelu" or "relu".
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        features: int = 512,
        heads: int = 8,
        feedforward: int = 2048,
        dropout: float = 0.0,
        causal: bool = False,
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
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_word("TransformerBlock", "mixer", mixer, mixer_kinds())
        check_word("TransformerBlock", "placement", placement, tuple(PLACEMENTS))
        if feedforward <= 0:
            raise ValueError(f"TransformerBlock: feedforward must be positive, but is {feedforward}")
        #: the kind of mixer in each place that has one
        self.places = {PLACEMENTS[placement]: str(mixer)} if mixer != "none" else {}
        if mix.places:
            self.places = parse_places("TransformerBlock", mix.places, PLACES)
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(features, **kind)
        of_weights = dropout if attention_dropout is None else attention_dropout
        self.attention = Attention(features, heads, of_weights, causal, reach, **kind)
        self.context_pool: ContextPool1d | None = None
        self.depthwise: Depthwise | None = None
        widths = {"B": 3 * features, "D": feedforward}
        mixers = {
            place: make_mixer(
                MixerOptions(
                    name, widths.get(place, features), causal, 1, *_shared(name, taps, mix), mix.rank, mix.heads,
                    features, pool or {},
                ),
                **kind,
            )
            for place, name in self.places.items()
        }  # fmt: skip
        if len(mixers) == 1:
            setattr(self, next(iter(self.places.values())), next(iter(mixers.values())))
        elif mixers:
            self.mixers = nn.ModuleDict(mixers)
        self.norm2 = nn.LayerNorm(features, **kind)
        self.feedforward = FeedForward(features, feedforward, activation, activation_dropout, **kind)
        self.dropout = nn.Dropout(dropout)

    def mixer(self, place: str) -> Mixer | None:
        """The mixer of a place; None where there is none."""
        if place not in PLACES:
            raise ValueError(f'TransformerBlock: there is no place "{place}"; the places are {PLACES}')
        if place not in self.places:
            return None
        found = getattr(self, self.places[place]) if len(self.places) == 1 else self.mixers[place]
        assert isinstance(found, Mixer)
        return found

    def finish_initialisation(self) -> None:
        """After a model has drawn all parameters by its own rule: each mixer's ``finish_initialisation``."""
        for place in self.places:
            mixer = self.mixer(place)
            assert mixer is not None
            mixer.finish_initialisation()

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
        return self._forward(x, rotation, self._real(x, lengths, mask, key_padding_mask))

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def forward_with_windows(
        self,
        x: Tensor,
        rotation: Tensor | None = None,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Windows | None]:
        """:meth:`forward`, and what the first ContextPool predicted; None where there is none."""
        real = self._real(x, lengths, mask, key_padding_mask)
        found: list[Windows] = []

        def mix(mixer: Mixer, place: str, value: Tensor, context: Tensor | None) -> Tensor:
            y, windows = mixer.forward_with_windows(value, mask=real, context=context)
            found.extend([] if windows is None else [windows])
            return y

        def attend(value: Tensor, projections: Callable[[Tensor], Tensor] | None) -> Tensor:
            return self.attention(value, rotation, real, mix=projections)

        y = self._run(without_padding(x, real, 1), attend, mix)
        return y, found[0] if found else None

    def _forward(self, x: Tensor, rotation: Tensor | None, real: Tensor | None, between: Between | None = None) -> Tensor:
        def mix(mixer: Mixer, place: str, value: Tensor, context: Tensor | None) -> Tensor:
            return mixer(value, mask=real, context=context)

        def attend(value: Tensor, projections: Callable[[Tensor], Tensor] | None) -> Tensor:
            return self.attention(value, rotation, real, mix=projections)

        return self._run(without_padding(x, real, 1), attend, mix, between)

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
        return self._step(x, cache, rotation, self._real(x, None, mask, key_padding_mask))

    def _step(
        self, x: Tensor, cache: BlockCache, rotation: Tensor | None, real: Tensor | None, between: Between | None = None
    ) -> Tensor:
        def mix(mixer: Mixer, place: str, value: Tensor, context: Tensor | None) -> Tensor:
            return mixer.step(value, cache.mixers[place], real, context=context)

        def attend(value: Tensor, projections: Callable[[Tensor], Tensor] | None) -> Tensor:
            return self.attention.step(value, cache.attention, rotation, real, mix=projections)

        return self._run(without_padding(x, real, 1), attend, mix, between)

    def _real(
        self, x: Tensor, lengths: Lengths | None, mask: Tensor | None, key_padding_mask: Tensor | None
    ) -> Tensor | None:
        if x.dim() != 3:
            raise ValueError(f"TransformerBlock: x must be [batch, tokens, features], but is {list(x.shape)}")
        return real_tokens("TransformerBlock", x.shape[:2], x.device, lengths, mask, key_padding_mask)

    def _run(
        self,
        x: Tensor,
        attend: Callable[[Tensor, Callable[[Tensor], Tensor] | None], Tensor],
        mix: Callable[[Mixer, str, Tensor, Tensor | None], Tensor],
        between: Between | None = None,
    ) -> Tensor:
        def at(place: str, value: Tensor, context: Tensor | None = None) -> Tensor:
            mixer = self.mixer(place)
            return value if mixer is None else mix(mixer, place, value, context)

        h = at("A", _for_product(self.norm1(x)))
        attended = attend(h, (lambda qkv: at("B", qkv, h)) if "B" in self.places else None)
        middle = x + self.dropout(at("O", attended, h))
        if between is not None:
            middle = between(middle)
        g = at("C", _for_product(self.norm2(middle)))
        feedforward = self.feedforward(g, (lambda up: at("D", up, g)) if "D" in self.places else None)
        return at("E", middle + self.dropout(feedforward))

    def extra_repr(self) -> str:
        return f"places={self.places}"


def _for_product(normed: Tensor) -> Tensor:
    """On a GPU under autocast, in its type, where torch's norms give float32: the matrix product that follows would
    cast it, and a mixer before the product moves half the bytes."""
    if not normed.is_cuda or normed.dtype != torch.float32 or not torch.is_autocast_enabled("cuda"):
        return normed
    return normed.to(torch.get_autocast_dtype("cuda"))


def windows_of_blocks(blocks: Iterable[TransformerBlock], x: Tensor, rotation: Tensor | None) -> list[Windows]:
    """What the first ContextPool of each block predicts where x passes all of them; of blocks with one only."""
    found = []
    for block in blocks:
        x, windows = block.forward_with_windows(x, rotation)
        found += [] if windows is None else [windows]
    return found


def _shared(kind: str, taps: int, mix: MixOptions) -> tuple[int, str]:
    """The taps and the residual of a mixer of this kind."""
    if kind == "depthwise":
        return taps, mix.residual
    return (mix.pool_taps, mix.residual) if kind == "context_pool" else (mix.taps, "")
