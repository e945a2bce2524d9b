"""Causal attention with a limited reach: a query sees the ``window`` keys at the distances 0, stride, 2 stride, ...

    y_i = sum_t w_it v_(i - t stride) / sum_t w_it,   w_it = m(t) exp(q_i . k_(i - t stride) / sqrt(head features)),

t = 0 .. window - 1, where m(t) = 1, or with a span clamp((32 + span - t) / 32, 0, 1). Time and memory are in proportion
to queries * window: there is no array of all pairs where the window is shorter than the row.

A row of queries is cut into chunks of about half a window; a chunk sees the keys from one window before its first query
to its last. Chunks are to scaled_dot_product_attention what heads are, and their keys a view that overlaps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SPAN_RAMP = 32  # tokens over which a span fades out
_LEAST_CHUNK = 32  # queries; smaller matrices cost more time than they save


def banded_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    window: int,
    stride: int = 1,
    span: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """q [batch, heads, queries, head features], k and v [batch, heads, keys, head features]; the queries are those of
    the last tokens among the keys'. key_mask [batch, keys]: false where only its own token sees a key. span: a
    number of tokens, with gradient."""
    batch, heads, queries, keys = *q.shape[:3], k.shape[2]
    if queries == 0:
        return q
    if stride == 1 and window >= keys and queries == keys and key_mask is None and span is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    window = min(window, _divide_up(keys, stride))
    # A stride makes that many rows of one, each with every stride-th token and a stride of 1.
    each = _divide_up(queries, stride)
    chunks = _divide_up(each, max(_LEAST_CHUNK, _divide_up(window, 2)))
    chunk = _divide_up(each, chunks)
    width = window + chunk  # keys of a chunk; the first of them is out of every reach
    front, back = stride * window - (keys - queries), stride * chunks * chunk - queries

    def rows(x: Tensor, before: int) -> Tensor:
        """[batch, heads, tokens, n] to [batch * heads, stride, tokens / stride, n]."""
        return torch.unflatten(F.pad(x, (0, 0, before, back)).flatten(0, 1), 1, (-1, stride)).transpose(1, 2)

    def overlapping(x: Tensor) -> Tensor:
        """What belongs to keys, to [batch * heads, stride * chunks, width, n]."""
        return rows(x, front).unfold(2, width, chunk).transpose(-1, -2).flatten(1, 2)

    if key_mask is None:
        real = torch.ones(1, 1, keys, 1, dtype=torch.bool, device=q.device)
    else:
        real = key_mask[:, None, :, None].expand(batch, heads, keys, 1)
    # How far back a key stands, in strides.
    distance = torch.arange(chunk, device=q.device).unsqueeze(1) + window - torch.arange(width, device=q.device)
    # A query that sees no key would get NaN weights, so padding, in the last chunk too, sees itself.
    exists = overlapping(real).squeeze(-1).unsqueeze(-2) | (distance == 0)
    mask = exists & (distance >= 0) & (distance < window)
    if span is not None:
        mask = _log_weights(mask, distance, span).to(q.dtype)
    asked = torch.unflatten(rows(q, 0), 2, (chunks, chunk)).flatten(1, 2)
    y = F.scaled_dot_product_attention(asked, overlapping(k), overlapping(v), mask, dropout)
    y = torch.unflatten(y, 1, (stride, chunks)).flatten(2, 3).transpose(1, 2).flatten(1, 2)
    return torch.unflatten(y[:, :queries], 0, (batch, heads))


def _divide_up(a: int, b: int) -> int:
    return (a + b - 1) // b


def _log_weights(seen: Tensor, distance: Tensor, span: Tensor) -> Tensor:
    """log m, and -infinity where a key is not seen. Where m is 0 or 1 it does not move with the span: no gradient,
    which the logarithm of 0 would become NaN."""
    ramp = (span - distance) / SPAN_RAMP + 1
    m = ramp.masked_fill((ramp <= 0) | (ramp >= 1), 1)
    return m.log().masked_fill(~seen | (ramp <= 0), -torch.inf)
