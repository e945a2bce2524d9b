"""Multi-head self-attention on PyTorch's scaled_dot_product_attention."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from ..ops import rotary_qkv
from ._banded_attention import SPAN_RAMP, banded_attention
from ._cache import TokenCache
from ._options import check_word
from ._padding import real_tokens
from ._sight import Sight, full_attention
from .area_attention import area_attention, area_means, area_sums
from .local_attention import LocalWindows
from .positions import rotate

_MOST_DOUBLINGS = 16
MixProjections = Callable[[Tensor], Tensor]
ReachKind = Literal["full", "window", "adaptive_span", "local", "area"]


@dataclasses.dataclass(frozen=True)
class Reach:
    """How far back a token sees. Distances count positions, padded ones too.

    ``"full"``: the whole row. ``"window"``: itself and the ``window - 1`` tokens before it; the last ``dilated_heads``
    heads see as many, but every ``(dilation + 1)``-th. Windows are twice as long for the tokens from position ``row``
    on, four times from ``2 * row`` on, and so on, as often as ``window_doublings`` says.

    ``"adaptive_span"``: each head has a span z in [0, 1], the parameter ``span`` ``[heads]``. A weight at distance d is
    multiplied by ``clamp((32 + z * span_limit - d) / 32, 0, 1)``, 0 from d = span_limit on, and the weights sum to 1
    again. A span outside [0, 1] counts as the nearer end, and has no gradient: put it back after a step of training.

    ``"local"``: the whole row, with a Gaussian around a predicted centre on the scores (:class:`LocalWindows`).
    ``"area"``: the whole row, and every area of up to ``area_width`` consecutive tokens of it (:func:`area_attention`).
    """

    kind: ReachKind = "full"
    window: int = 512
    dilation: int = 0
    dilated_heads: int = 0
    row: int = 2048
    window_doublings: int = 0
    span_limit: int = 8192
    area_width: int = 5

    def check(self, heads: int, causal: bool) -> None:
        check_word("Attention", "attention", self.kind, get_args(ReachKind))
        if self.area_width < 1:
            raise ValueError(f"Attention: area_width must be positive, but is {self.area_width}")
        if self.kind not in ("window", "adaptive_span"):
            return
        if not causal:
            raise ValueError(f'Attention: attention "{self.kind}" must be causal')
        for name in ("span_limit",) if self.kind == "adaptive_span" else ("window", "row"):
            if getattr(self, name) <= 0:
                raise ValueError(f"Attention: {name} must be positive, but is {getattr(self, name)}")
        if self.kind == "adaptive_span":
            return
        if self.dilation < 0:
            raise ValueError(f"Attention: dilation must not be negative, but is {self.dilation}")
        if not 0 <= self.dilated_heads <= heads:
            raise ValueError(
                f"Attention: dilated_heads must be from 0 to the number of heads, {heads}, but is {self.dilated_heads}"
            )
        if not 0 <= self.window_doublings <= _MOST_DOUBLINGS:
            raise ValueError(
                f"Attention: window_doublings must be from 0 to {_MOST_DOUBLINGS}, but is {self.window_doublings}"
            )


_WHOLE_ROW = Reach()


class AttentionCache(TokenCache):
    """Keys and values of the tokens seen so far, [batch, tokens, heads, head features]; of areas those that end at each
    token, [batch, tokens, width, heads, head features]."""


class Attention(nn.Module):
    """out(softmax(q k^T / sqrt(head features)) v) with q, k, v = qkv(x).

    Args:
        features: channels of a token.
        heads: they divide the features.
        dropout: of the attention weights.
        causal: a token sees itself and those before it.
        reach: how far back; the whole row unless given.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        features: int = 512,
        heads: int = 8,
        dropout: float = 0.0,
        causal: bool = False,
        reach: Reach = _WHOLE_ROW,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads <= 0 or features <= 0 or features % heads:
            raise ValueError(f"Attention: features must be a multiple of heads, but are {features} and {heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"Attention: dropout must be in [0, 1), but is {dropout}")
        reach.check(heads, causal)
        self.features, self.heads, self.dropout, self.causal, self.reach = features, heads, dropout, causal, reach
        self.qkv = nn.Linear(features, 3 * features, device=device, dtype=dtype)
        self.out = nn.Linear(features, features, device=device, dtype=dtype)
        spans = torch.zeros(heads, device=device, dtype=dtype) if reach.kind == "adaptive_span" else None
        self.span = None if spans is None else nn.Parameter(spans)
        self.local: LocalWindows | None = None
        if reach.kind == "local":
            self.local = LocalWindows(heads, features // heads, device=device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        rotation: Tensor | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        mix: MixProjections | None = None,
    ) -> Tensor:
        """x [batch, tokens, features]; mask [batch, tokens], true where a token is real (key_padding_mask: where it is
        not): no token sees the others, whatever they contain. mix: what becomes of the joined projections [batch,
        tokens, 3 features] before they are turned."""
        real = real_tokens("Attention", x.shape[:2], x.device, None, mask, key_padding_mask)
        # A weight of 0 times NaN would be NaN.
        q, k, v = self._project(x if real is None else x.masked_fill(~real.unsqueeze(-1), 0), rotation, mix)
        if self.reach.kind == "area":
            width, tokens = self.reach.area_width, x.shape[1]
            k, v = area_means(k.transpose(1, 2), width, tokens), area_sums(v.transpose(1, 2), width, tokens)
        return self._attend(q, k, v, real)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def step(
        self,
        x: Tensor,
        cache: AttentionCache,
        rotation: Tensor | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        mix: MixProjections | None = None,
    ) -> Tensor:
        """The next tokens x [batch, new tokens, features] of a causal row, after those in the cache, which they join.
        Equals the last rows of ``forward`` over all of them. mask [batch, new tokens], as for ``forward``; the cache
        remembers it."""
        if not self.causal:
            raise RuntimeError("Attention: only causal attention has steps")
        cache.check_rows("Attention", x)
        fresh = real_tokens("Attention", x.shape[:2], x.device, None, mask, key_padding_mask)
        q, k, v = self._project(x if fresh is None else x.masked_fill(~fresh.unsqueeze(-1), 0), rotation, mix)
        if self.reach.kind == "area":
            keys = self._append_areas("keys", k, cache)
            values = self._append_areas("values", v, cache)
        else:
            keys = cache.append("keys", k.transpose(1, 2)).transpose(1, 2)
            values = cache.append("values", v.transpose(1, 2)).transpose(1, 2)
        real = cache.append_mask(fresh, x)
        cache.length += x.shape[1]
        return self._attend(q, keys, values, real)

    def _append_areas(self, name: str, fresh: Tensor, cache: AttentionCache) -> Tensor:
        """The widest area of a new token reaches back to tokens in the cache: they are its areas of width 1."""
        tokens, width = fresh.transpose(1, 2), self.reach.area_width
        seen = min(cache.length, width - 1)
        if seen > 0:
            tokens = torch.cat((cache.read(name)[:, cache.length - seen :, 0], tokens), 1)
        areas = area_means if name == "keys" else area_sums
        return cache.append(name, areas(tokens, width, fresh.shape[2]))

    def _project(
        self, x: Tensor, rotation: Tensor | None, mix: MixProjections | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        projected = self.qkv(x) if mix is None else mix(self.qkv(x))
        qkv = torch.unflatten(projected, -1, (3, self.heads, -1))
        if rotation is not None and qkv.is_cuda:  # one pass over the projections, and one over their gradient
            q, k, v = rotary_qkv(qkv, rotation[0], rotation[1])
            return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        q, k = rotate(qkv[:, :, :2], rotation).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), qkv[:, :, 2].transpose(1, 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """The queries are those of the last tokens among the keys'; real [batch, keys]: false where a key is
        padding."""
        kind, dropout = self.reach.kind, self.dropout if self.training else 0.0
        sight = Sight(real, self.causal, dropout)
        if kind == "full":
            y = full_attention(q, k, v, sight)
        elif kind == "area":
            y = area_attention(q, k, v, sight)
        elif self.local is not None:
            y = self.local.attend(q, k, v, sight)
        else:
            see = self._see_windows if kind == "window" else self._see_spans
            y = see(q, k, v, real, dropout)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out

    def _see_windows(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, dropout: float) -> Tensor:
        """Runs of tokens with the same window, and in each the heads with the same dilation."""
        r, end = self.reach, k.shape[2]
        begin = at = end - q.shape[2]
        plain = self.heads - (r.dilated_heads if r.dilation > 0 else 0)
        runs: list[Tensor] = []
        while at < end or not runs:
            doublings = min((at // r.row).bit_length(), r.window_doublings)
            stop = min(end, r.row << doublings) if doublings < r.window_doublings else end
            heads = [
                banded_attention(
                    q[:, some, at - begin : stop - begin],
                    k[:, some, :stop],
                    v[:, some, :stop],
                    None if real is None else real[:, :stop],
                    r.window << doublings,
                    stride,
                    dropout=dropout,
                )
                for some, stride in ((slice(plain), 1), (slice(plain, None), r.dilation + 1))
                if q[:, some].shape[1] > 0
            ]
            runs.append(torch.cat(heads, 1))
            at = stop
        return torch.cat(runs, 2)

    def _see_spans(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, dropout: float) -> Tensor:
        """Each head by itself: it costs what its own span asks for, and most spans stay short."""
        assert self.span is not None
        limit = self.reach.span_limit
        # Half types could not tell neighbours apart.
        spans = self.span.to(torch.promote_types(self.span.dtype, torch.float32)).clamp(0, 1) * limit
        seen = []
        for h, tokens in enumerate(spans.tolist()):
            head, window = slice(h, h + 1), min(limit, math.ceil(tokens) + SPAN_RAMP)
            seen.append(banded_attention(q[:, head], k[:, head], v[:, head], real, window, 1, spans[h], dropout))
        return torch.cat(seen, 1)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dropout={self.dropout}, causal={self.causal}, attention={self.reach.kind}"
