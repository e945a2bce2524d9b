"""What ContextPool does with predicted weights and sizes, for every weighting and locality.

``y_i = sum_j exp(l_ij) g_ij x_j / sum_j exp(l_ij) g_ij`` with ``l_ij = l_j`` (0 for "uniform"), or
``theta(x_i)^T phi(x_j)`` for "nonlocal"; "unnormalized" weights w multiply the features, which are then averaged
uniformly. t is the distance of i and j, R_i the predicted size:

gaussian ``exp(-t**2 / (2 R_i**2))``, none 1, fixed_window ``t <= R``, adaptive_window
``clamp(1 + (R_i - t) / 2, 0, 1)``, random_sparse 1 for i itself and for 8 drawn j.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..ops import pool1d, pool2d
from ._average import NONE, average, shares
from ._options import Options
from ._predictor import weight_dtype
from ._random_sources import random_sources

EVERYTHING = 1e15  # a size so large that the Gaussian is 1 to the last bit of float64
SMALLEST = 1e-6  # a size below which the Gaussian has no neighbour left
RAMP = 2  # tokens over which the edge of an adaptive window falls to 0


class Prediction(NamedTuple):
    weights: Tensor | None = None  # [B, G, S]: l, or w of "unnormalized"; None for "uniform" and "nonlocal"
    sizes: Tensor | None = None  # [B, G, M], 0 at padded targets; None where the locality has none
    queries: Tensor | None = None  # [B, M, D]: theta(x_i) of "nonlocal", else None
    keys: Tensor | None = None  # [B, S, D]: phi(x_j) of "nonlocal", else None


def _given(part: Tensor | None) -> Tensor:
    """A part of the prediction that these options have."""
    assert part is not None
    return part


class Places(NamedTuple):
    """Where targets and sources are."""

    distance: Tensor  # [M, S], or [S] where it is the same for every target
    after: Tensor | None = None  # sources that come after the target, where that matters


def pool_row(options: Options, x: Tensor, prediction: Prediction, padded: Tensor | None, targets: int) -> Tensor:
    """x ``[B, N, D]``, 0 at padded tokens; padded ``[B, N]``. The targets are the last ``targets`` tokens."""
    tokens = x.shape[1]
    features = torch.unflatten(x, 2, (options.groups, -1)).transpose(1, 2)  # [B, G, N, D / G]
    if options.weights == "unnormalized":
        features = _weighted(features, _given(prediction.weights).unsqueeze(-1))
    log_weight = log_weights(options, x, tokens, prediction, padded)
    # Adaptive windows in proportion to the row are no smaller, up to a factor, than the row itself.
    bounded = options.locality == "fixed_window" or options.locality == "adaptive_window" and options.reference_length
    if options.locality == "gaussian" and not options.pairwise_weights:
        y = _pool_gaussian(features, log_weight, _given(prediction.sizes), options.causal)
    elif options.locality == "none" and not options.pairwise_weights:
        y = _pool_everything(features, log_weight, options.causal, targets)
    elif bounded and not options.pairwise_weights:
        y = _pool_windows(options, features, log_weight, prediction.sizes, targets)
    else:
        at = torch.arange(tokens - targets, tokens, device=x.device)
        places = _row_places(log_weight, tokens, targets, options.causal)
        y = _pool_dense(options, features, log_weight, places, prediction, at, padded)
    y = y.transpose(1, 2).flatten(2)
    return y if padded is None else y.masked_fill(padded[:, tokens - targets :].unsqueeze(2), 0)


def pool_map(
    options: Options, stride: tuple[int, int], x: Tensor, prediction: Prediction, padded: Tensor | None
) -> Tensor:
    """x ``[B, C, H, W]``, 0 at padded pixels; padded ``[B, H, W]``. S = H W, M = Ho Wo, both row by row."""
    batch, channels, height, width = x.shape
    pixels, groups = height * width, options.groups
    maps = x.reshape(batch * groups, -1, height, width) if groups > 1 else x
    if options.weights == "unnormalized":
        maps = _weighted(maps, _given(prediction.weights).reshape(-1, 1, height, width))
    flat_padded = None if padded is None else padded.flatten(1)
    log_weight = log_weights(options, x, pixels, prediction, flat_padded)
    at = at_targets(stride, torch.arange(pixels, device=x.device).view(height, width))
    if options.locality == "gaussian" and not options.pairwise_weights:
        sizes = _given(prediction.sizes).reshape(-1, *at.shape)
        y = pool2d(maps, log_weight.reshape(-1, height, width), sizes, stride)
    else:
        features = torch.unflatten(maps.flatten(2).transpose(1, 2), 0, (batch, groups))  # [B, G, H W, C / G]
        at_flat = at.flatten()
        if options.locality == "none" and not options.pairwise_weights:
            y = _pool_everything(features, log_weight, False, at_flat.shape[0])
        else:
            places = _map_places(log_weight, at_flat, pixels, width)
            y = _pool_dense(options, features, log_weight, places, prediction, at_flat, flat_padded)
        y = y.transpose(2, 3)
    y = y.reshape(batch, channels, *at.shape)
    return y if padded is None else y.masked_fill(at_targets(stride, padded).unsqueeze(1), 0)


def at_targets(stride: tuple[int, int], values: Tensor) -> Tensor:
    """The values ``[..., H, W]`` of a map at its targets, ``[..., Ho, Wo]``."""
    return values[..., :: stride[0], :: stride[1]]


def predicted_sizes(options: Options, channels: Tensor, padded: Tensor | None, length: float | Tensor) -> Tensor:
    """sigma of the predicted channels ``[B, channels, tokens]``: ``[B, G, tokens]``. length: n, or ``[B, 1, 1]``.

    With bounded sizes ``sigma = f + (L - f) sigmoid(c + size)``, ``f = size_floor initial_sigma``, ``L = max(r n, 2
    initial_sigma)`` and c such that a size channel of 0 gives initial_sigma at any n. Else ``sigma = r n s``, with s in
    [0, 1] as size_norm says.
    """
    if not options.bounded_sizes:
        return _normalized_sizes(options, channels, padded) * (options.ratio * length)
    sizes, start, least = channels[:, -options.groups :], options.initial_sigma, options.smallest_size
    if options.reference_length:
        limit = options.reference_limit
        return torch.sigmoid(sizes + math.log((start - least) / (limit - start))) * (limit - least) + least
    # In tensors, and not by clamp_min, so that torch.compile makes one graph for all lengths.
    one = sizes.new_ones(())
    limits = torch.maximum(options.ratio * length * one, options.smallest_limit * one)
    return torch.sigmoid(sizes + torch.log((start - least) / (limits - start))) * (limits - least) + least


def _normalized_sizes(options: Options, channels: Tensor, padded: Tensor | None) -> Tensor:
    sizes = channels[:, -options.groups :]
    if options.size_norm == "sigmoid":
        return sizes.sigmoid()
    if options.size_norm == "channels":
        return (sizes - channels[:, : options.groups]).sigmoid()
    return shares(_with_padding(sizes, padded))


def log_weights(
    options: Options, x: Tensor, sources: int, prediction: Prediction, padded: Tensor | None
) -> Tensor:
    """l ``[B, G, S]`` of the average that is left to take: 0 where the weights are part of the features, or alike."""
    if options.weights == "softmax" and prediction.weights is not None:
        return _with_padding(prediction.weights, padded)
    zeros = torch.zeros(x.shape[0], options.groups, sources, dtype=weight_dtype(x), device=x.device)
    return _with_padding(zeros, padded)


def _with_padding(log_weight: Tensor, padded: Tensor | None) -> Tensor:
    return log_weight if padded is None else log_weight.masked_fill(padded.unsqueeze(1), NONE)


def _weighted(x: Tensor, weights: Tensor) -> Tensor:
    """What "unnormalized" averages: w_j x_j."""
    return (x * weights).to(x.dtype)


def _pool_gaussian(x: Tensor, log_weight: Tensor, sizes: Tensor, causal: bool) -> Tensor:
    """The operator, which takes rows without a group dimension as they lie."""
    if x.shape[1] > 1:
        return pool1d(x, log_weight, sizes, causal)
    return pool1d(x.squeeze(1), log_weight.squeeze(1), sizes.squeeze(1), causal).unsqueeze(1)


def _pool_everything(x: Tensor, log_weight: Tensor, causal: bool, targets: int) -> Tensor:
    """The weighted mean of all tokens, or of those up to each target."""
    sizes = log_weight.new_full((x.shape[0], x.shape[1], targets if causal else 1), EVERYTHING)
    return _pool_gaussian(x, log_weight, sizes, causal).expand(-1, -1, targets, -1)


def _window(options: Options, places: Places, sizes: Tensor | None) -> Tensor:
    """g_ij of the localities that are a function of the distance."""
    if options.locality == "fixed_window":
        g = (places.distance <= options.window).to(places.distance.dtype)
    elif options.locality == "adaptive_window":
        g = (1 + (_given(sizes).unsqueeze(-1) - places.distance) / RAMP).clamp(0, 1)
    else:
        g = torch.ones_like(places.distance)
    return g if places.after is None else g.masked_fill(places.after, 0)


def _pool_windows(options: Options, x: Tensor, log_weight: Tensor, sizes: Tensor | None, targets: int) -> Tensor:
    """Windows of bounded reach, one source of every target at a time: work in proportion to the window, not to the row.

    x ``[B, G, N, D]``, log_weight ``[B, G, N]``; the targets are the last M tokens.
    """
    first, left = x.shape[2] - targets, _reach(options)
    right = 0 if options.causal else left
    start, before, taps = max(first - left, 0), max(left - first, 0), left + 1 + right
    x_near = F.pad(x[:, :, start:], (0, 0, before, right))
    l_near = F.pad(log_weight[:, :, start:], (before, right), value=NONE)
    distance = torch.arange(-left, right + 1, dtype=log_weight.dtype, device=x.device).abs()
    scores = torch.stack([l_near[:, :, k : k + targets] for k in range(taps)], 3)  # [B, G, M, taps]
    p = shares(scores, _window(options, Places(distance), sizes))
    y = p[..., :1] * x_near[:, :, :targets]
    for k in range(1, taps):
        y = y + p[..., k : k + 1] * x_near[:, :, k : k + targets]
    return y.to(x.dtype)


def _reach(options: Options) -> int:
    """The farthest source of a window of bounded reach."""
    fixed = options.locality == "fixed_window"
    return math.ceil(options.window if fixed else options.reference_limit + RAMP)


def _pool_dense(
    options: Options,
    x: Tensor,
    log_weight: Tensor,
    places: Places,
    prediction: Prediction,
    at: Tensor,
    padded: Tensor | None,
) -> Tensor:
    """Every source for every target: x ``[B, G, S, D]``, log_weight ``[B, G, S]``; at: the targets among the
    sources."""
    scores = _pair_scores(prediction, padded) if options.pairwise_weights else log_weight.unsqueeze(2)
    if options.locality == "gaussian":
        scores = scores - (places.distance / _given(prediction.sizes).clamp_min(SMALLEST).unsqueeze(-1)).square() / 2
    g = _window(options, places, prediction.sizes)
    if options.locality == "random_sparse":
        g = g * random_sources(options, at, x.shape[2], padded)
    return average(x, scores, g)


def _pair_scores(prediction: Prediction, padded: Tensor | None) -> Tensor:
    """theta(x_i)^T phi(x_j): ``[B, 1, M, S]``."""
    queries, keys = _given(prediction.queries), _given(prediction.keys)
    dtype = weight_dtype(queries)
    scores = (queries.to(dtype) @ keys.to(dtype).transpose(1, 2)).unsqueeze(1)
    return scores if padded is None else scores.masked_fill(padded[:, None, None], NONE)


def _row_places(like: Tensor, tokens: int, targets: int, causal: bool) -> Places:
    positions = torch.arange(tokens, dtype=like.dtype, device=like.device)
    t = positions[tokens - targets :].unsqueeze(1) - positions
    return Places(t.abs(), t < 0 if causal else None)


def _map_places(like: Tensor, targets: Tensor, pixels: int, width: int) -> Places:
    sources = torch.arange(pixels, device=targets.device)
    down = (targets // width).unsqueeze(1) - sources // width
    across = (targets % width).unsqueeze(1) - sources % width
    return Places((down.square() + across.square()).to(like.dtype).sqrt())
