"""Area attention (Li et al. 2019): the memory holds, besides each key, every area of some consecutive keys.

The key of an area is the mean of its keys, its value the sum of its values. An area that touches padding does not exist,
nor, in causal attention, one that touches a token after the query. An area is known by its last token and its width, so
that a new token adds areas and changes none: they can be kept in a cache. The sum of an area is that of the one narrower
by a token, plus that token: one addition for an area, as with a summed-area table, but without the cancellation of its
large sums.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._sight import Sight, seen_keys


def area_sums(x: Tensor, width: int, fresh: int) -> Tensor:
    """The sums of the areas that end at the last ``fresh`` tokens of x ``[batch, tokens, heads, n]``: ``[batch, fresh,
    width, heads, n]``. Those that begin before the row hold a part; :func:`area_attention` does not see them."""
    first = x.shape[1] - fresh
    widths = [x[:, first:]]
    for w in range(1, width):
        widths.append(widths[-1] + _later(x, w)[:, first:])
    return torch.stack(widths, 2)


def area_means(x: Tensor, width: int, fresh: int) -> Tensor:
    """The means of the same areas."""
    counts = torch.arange(1, width + 1, device=x.device, dtype=x.dtype)
    return area_sums(x, width, fresh) / counts.view(width, 1, 1)


def area_attention(q: Tensor, keys: Tensor, values: Tensor, sight: Sight) -> Tensor:
    """q ``[batch, heads, queries, n]``; keys and values of all areas, ``[batch, tokens, width, heads, n]``. Of
    ``sight``, real is ``[batch, tokens]``, and the queries are those of the last tokens where it is causal."""
    queries, tokens, width = q.shape[2], keys.shape[1], keys.shape[2]
    mask = _existing(sight.real, tokens, width, q.device).unsqueeze(1)  # [B, 1, N, W]
    seen = seen_keys(sight, queries, tokens, q.device)  # [B, M, N]
    if seen is not None:
        # seen says who sees a single token, those of padding that must see something included.
        token = seen.unsqueeze(-1)
        mask = torch.cat((token, token & mask[..., 1:]), -1)
    k, v = keys.flatten(1, 2).transpose(1, 2), values.flatten(1, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, mask.flatten(2).unsqueeze(1), sight.dropout)


def _later(x: Tensor, by: int) -> Tensor:
    """x ``[batch, tokens, ...]``, ``by`` tokens later; what comes in at the front is 0, or false."""
    kept = max(0, x.shape[1] - by)
    return F.pad(x[:, :kept], (*(0, 0) * (x.dim() - 2), x.shape[1] - kept, 0))


def _existing(real: Tensor | None, tokens: int, width: int, device: torch.device) -> Tensor:
    """``[batch or 1, tokens, width]``: whether the area with this last token and width lies in the row and on real
    tokens only."""
    real = torch.ones(1, tokens, dtype=torch.bool, device=device) if real is None else real
    widths = [real]
    for w in range(1, width):
        widths.append(widths[-1] & _later(real, w))
    return torch.stack(widths, 2)
