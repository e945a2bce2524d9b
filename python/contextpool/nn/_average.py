"""Softmax averages in which any entry may be missing: ``-inf`` among the scores, or a factor of 0.

A row without any entry gives 0, with gradients of 0, where torch's softmax gives NaN.
"""

import torch
from torch import Tensor

NONE = float("-inf")  # the log weight of a token that does not exist


def shares(scores: Tensor, factors: Tensor | None = None) -> Tensor:
    """``exp(scores) g / sum exp(scores) g`` over the last dimension, with factors ``g >= 0`` or 1."""
    if scores.numel() == 0:
        return scores
    # The largest is taken over what exists only: what is beyond a window, or in the future, has no say.
    existing = scores if factors is None else scores.masked_fill(factors == 0, NONE)
    top = existing.detach().amax(-1, keepdim=True)
    parts = (existing - top.masked_fill(top == NONE, 0)).exp()
    if factors is not None:
        parts = parts * factors
    total = parts.sum(-1, keepdim=True)
    return parts / total.masked_fill(total == 0, 1)


def average(x: Tensor, scores: Tensor, factors: Tensor) -> Tensor:
    """``sum_j exp(scores_ij) g_ij x_j / sum_j exp(scores_ij) g_ij``.

    ``x [..., S, D]``, ``scores [..., 1 or M, S]`` in float32 or float64, factors ``g [..., M, S]``; returns
    ``[..., M, D]`` in the dtype of ``x``.
    """
    return torch.matmul(shares(scores, factors).to(x.dtype), x)
