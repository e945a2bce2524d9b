"""What the queries of attention see of its keys, and plain attention over that."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Sight(NamedTuple):
    """What limits a query's view, and the dropout of its weights."""

    real: Tensor | None = None  #: ``[batch, keys]``, false where a key is padding; None: none is
    causal: bool = False  #: a query sees the keys up to its own; the queries are those of the last keys
    dropout: float = 0.0  #: of the attention weights


def seen_keys(sight: Sight, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """``[batch or 1, queries or 1, keys]``, true where a query sees a key; None where every query sees every key.

    Every query sees something, since weights over nothing would be NaN on some devices: in causal attention a padded
    query sees itself, and in a row without any real key all keys are seen.
    """
    past = None
    if sight.causal and (queries > 1 or sight.real is not None):
        past = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    if sight.real is None:
        return None if past is None else past.unsqueeze(0)
    real = sight.real.unsqueeze(1)
    if past is not None:
        return real & past | past.triu(keys - queries)
    return real | ~real.any(-1, keepdim=True)


def full_attention(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """``softmax(q k^T / sqrt(head features)) v`` over what is seen: q ``[batch, heads, queries, head features]``, k and
    v ``[batch, heads, keys, head features]``."""
    queries, keys = q.shape[2], k.shape[2]
    whole = queries == keys and sight.real is None  # for which PyTorch knows causality by itself
    seen = None if sight.causal and whole else seen_keys(sight, queries, keys, q.device)
    mask = None if seen is None else seen.unsqueeze(1)
    return F.scaled_dot_product_attention(q, k, v, mask, sight.dropout, sight.causal and whole)
