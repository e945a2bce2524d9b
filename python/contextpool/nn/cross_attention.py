"""Multi-head attention from one row of tokens to another, as a translator's decoder needs it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ._options import check_word
from ._padding import Lengths, real_tokens
from ._sight import Sight, full_attention
from .area_attention import area_attention, area_means, area_sums
from .local_attention import LocalWindows

AttentionKind = Literal["full", "local", "area"]


class CrossMemory:
    """Keys and values of the memory, computed once for all the tokens that will ask.

    Several rows of tokens can share one row of it (:meth:`repeat`), as the hypotheses of a beam do: it is kept once.
    """

    def __init__(self, keys: Tensor, values: Tensor, real: Tensor | None) -> None:
        self.keys, self.values, self.real, self.shared = keys, values, real, 1

    @property
    def rows(self) -> int:
        """Rows of tokens that this memory is for: its own rows times how many share each."""
        return self.keys.shape[0] * self.shared

    def repeat(self, times: int) -> None:
        """Each row of tokens becomes ``times`` equal ones that lie together."""
        if times < 1:
            raise ValueError(f"CrossMemory: repeat needs 1 or more times, but was asked for {times}")
        self.shared *= times

    def select(self, rows: Tensor) -> None:
        """Row b of the tokens becomes what row ``rows[b]`` was (int64 ``[B']`` or bool ``[B]``); rows that shared no
        longer do."""
        own = torch.div(_numbers(rows), self.shared, rounding_mode="floor")
        self.shared = 1
        self.select_shared(own)

    def select_shared(self, rows: Tensor) -> None:
        """Of the memory's own rows those named (int64) or true (bool) stay, each with all the rows of tokens that share
        it."""
        chosen = _numbers(rows)
        self.keys, self.values = self.keys.index_select(0, chosen), self.values.index_select(0, chosen)
        self.real = None if self.real is None else self.real.index_select(0, chosen)

    def copy(self) -> CrossMemory:
        """One that can be changed by itself."""
        return copy.copy(self)


class CrossAttention(nn.Module):
    """out(softmax(q k^T / sqrt(head features)) v) with q = q(x) and k, v = kv(memory).

    Positions do not turn its queries and keys: the two rows have positions of their own.

    Args:
        features: channels of a token.
        heads: they divide the features.
        dropout: of the attention weights.
        kind: "full", "local" (:class:`LocalWindows`) or "area" (:func:`area_attention`).
        area_width: tokens of the widest area.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        features: int = 512,
        heads: int = 8,
        dropout: float = 0.0,
        kind: AttentionKind = "full",
        area_width: int = 5,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_word("CrossAttention", "kind", kind, ("full", "local", "area"))
        if heads <= 0 or features <= 0 or features % heads:
            raise ValueError(f"CrossAttention: features must be a multiple of heads, but are {features} and {heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"CrossAttention: dropout must be in [0, 1), but is {dropout}")
        if area_width < 1:
            raise ValueError(f"CrossAttention: area_width must be positive, but is {area_width}")
        self.features, self.heads, self.dropout = features, heads, dropout
        self.kind, self.area_width = kind, area_width
        device_and_dtype: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q = nn.Linear(features, features, **device_and_dtype)
        self.kv = nn.Linear(features, 2 * features, **device_and_dtype)
        self.out = nn.Linear(features, features, **device_and_dtype)
        self.local = LocalWindows(heads, features // heads, **device_and_dtype) if kind == "local" else None

    def remember(
        self,
        memory: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> CrossMemory:
        """Keys and values of memory ``[batch, tokens, features]``; what padded tokens of it hold reaches nothing. A row
        without any real token gives the same output whatever it holds."""
        if memory.dim() != 3 or memory.shape[1] == 0 or memory.shape[2] != self.features:
            raise ValueError(
                f"CrossAttention: memory must be [batch, tokens, {self.features}] with at least one token, but is "
                f"{list(memory.shape)}"
            )
        real = real_tokens("CrossAttention", memory.shape[:2], memory.device, lengths, mask, key_padding_mask)
        # A weight of 0 times a NaN would be a NaN.
        clean = memory if real is None else memory.masked_fill(~real.unsqueeze(-1), 0)
        keys, values = torch.unflatten(self.kv(clean), -1, (2, self.heads, -1)).unbind(2)
        if self.kind == "area":
            tokens = memory.shape[1]
            keys, values = area_means(keys, self.area_width, tokens), area_sums(values, self.area_width, tokens)
        return CrossMemory(keys, values, real)

    def forward(self, x: Tensor, memory: CrossMemory) -> Tensor:
        """x ``[rows, tokens, features]``, a row for each of the memory's."""
        if x.dim() != 3 or x.shape[2] != self.features:
            raise ValueError(f"CrossAttention: x must be [batch, tokens, {self.features}], but is {list(x.shape)}")
        if memory.rows != x.shape[0]:
            raise ValueError(
                f"CrossAttention: the memory is for {memory.rows} rows, but x has {x.shape[0]}; select or repeat the "
                "memory's rows"
            )
        # Rows that share a row of the memory are to it what more queries of one row are.
        own, head = memory.keys.shape[0], self.features // self.heads
        q = self.q(x).view(own, memory.shared * x.shape[1], self.heads, head).transpose(1, 2)
        sight = Sight(memory.real, False, self.dropout if self.training else 0.0)
        if self.kind == "area":
            y = area_attention(q, memory.keys, memory.values, sight)
        else:
            k, v = memory.keys.transpose(1, 2), memory.values.transpose(1, 2)
            y = full_attention(q, k, v, sight) if self.local is None else self.local.attend(q, k, v, sight)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2).view(x.shape))
        return out

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dropout={self.dropout}, kind={self.kind}"


def _numbers(rows: Tensor) -> Tensor:
    return rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
