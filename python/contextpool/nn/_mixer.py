"""What every local mixer is: the interface, its options and its cache. ``contextpool.nn.mixer`` has the table of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from ._cache import TokenCache

if TYPE_CHECKING:
    from .context_pool import Windows


class MixerCache(TokenCache):
    """What a mixer of causal rows remembers; one kind of cache for all of them."""


@dataclasses.dataclass(frozen=True)
class MixerOptions:
    """Options of a local mixer.

    Args:
        kind: one of ``mixer_kinds()``.
        features: D of rows ``[B, N, D]``, C of maps ``[B, C, H, W]``.
        causal: nothing that comes after a token reaches it; rows only.
        dims: 1 for rows, 2 for maps.
        taps: of the convolutions; of maps the side of the square. 0, the kind's own: depthwise 15, canon and dynamic 4
            (3 if centred), 3 for maps; context_pool has none beside it.
        residual: "none", "plain", "scale" or "gated"; empty, the kind's own: plain for canon and dynamic, which have no
            other, else none.
        rank: of what depends on the context: in dynamic, and in a gated residual.
        heads: of dynamic: slices of the features that share coefficients; 0: low-rank ones for each channel.
        context_features: of the context; 0: features.
        pool: options of ContextPool other than features and causal, by name. Those missing are at the defaults of
            :class:`ContextPool1d` or :class:`ContextPool2d`.
    """

    kind: str = "none"
    features: int = 0
    causal: bool = False
    dims: int = 1
    taps: int = 0
    residual: str = ""
    rank: int = 15
    heads: int = 0
    context_features: int = 0
    pool: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Mixer(nn.Module):
    """What stands in a place of a block and lets each token see some of those around it, without changing the shape."""

    def forward(self, x: Tensor, *, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """x ``[B, N, D]`` or ``[B, C, H, W]`` to the same shape.

        Args:
            x: features. What padded tokens hold reaches neither the others nor any gradient.
            mask: which tokens are real, ``[B, N]`` or ``[B, H, W]``; all unless given.
            context: what coefficients that depend on the input are made of, of x's shape but for the features: in a
                block, its normed input. None: x itself. Mixers without such coefficients do not look at it.
        """
        raise NotImplementedError

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def forward_with_windows(
        self, x: Tensor, *, mask: Tensor | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, Windows | None]:
        """The same, and what a ContextPool predicted; None from other mixers."""
        return self(x, mask=mask, context=context), None

    def step(
        self, x: Tensor, cache: MixerCache, mask: Tensor | None = None, *, context: Tensor | None = None
    ) -> Tensor:
        """The next tokens ``[B, T, D]`` of causal rows, which then are in the cache too: equals the last rows of
        ``forward`` over all of them. mask and context are those of the new tokens; the cache remembers the mask."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draws every parameter anew by the mixer's own rule."""

    def finish_initialisation(self) -> None:
        """For a model that has drawn all of its parameters by a rule of its own, after that: restores the parameters
        whose start is part of the mixer. ContextPool's sizes; canon's taps; dynamic's taps, with the part that depends
        on the context at 0; the coefficients of a residual. The weights of depthwise and of the predictor stay as
        drawn."""


def check_shape(who: str, x: Tensor, features: int, dims: int) -> None:
    expected = f"[batch, tokens, {features}]" if dims == 1 else f"[batch, {features}, height, width]"
    if x.dim() != dims + 2 or x.shape[2 if dims == 1 else 1] != features:
        raise ValueError(f"{who}: x must be {expected}, but is {list(x.shape)}")


def tokens_of(x: Tensor, dims: int) -> list[int]:
    """The shape of a mask of x: [B, N] or [B, H, W]."""
    return [x.shape[0], *x.shape[1 if dims == 1 else 2 :][:dims]]


def without_padding(x: Tensor, real: Tensor | None, dims: int) -> Tensor:
    """x with 0 at padded tokens."""
    return x if real is None else x.masked_fill(~real.unsqueeze(-1 if dims == 1 else 1), 0)


def context_of(
    who: str, context: Tensor | None, x: Tensor, real: Tensor | None, features: int, dims: int
) -> Tensor:
    """The context (x where there is none) with 0 at padded tokens and its features last."""
    h = x if context is None else context
    expected = list(x.shape)
    expected[2 if dims == 1 else 1] = features
    if list(h.shape) != expected:
        own = " (x itself, since none was given)" if context is None else ""
        raise ValueError(f"{who}: the context must be {expected}, but is {list(h.shape)}{own}")
    h = without_padding(h, real, dims)
    return h if dims == 1 else h.movedim(1, -1)


def last_tokens(cache: TokenCache, tokens: int, before: int) -> Tensor:
    """The last tokens of those that a cache holds as "features", and those before them, zeros where the row has none:
    what taps look at in a step."""
    seen = min(cache.length - tokens, before)
    near = cache.read("features")[:, cache.length - tokens - seen :]
    return F.pad(near, (0, 0, before - seen, 0))
