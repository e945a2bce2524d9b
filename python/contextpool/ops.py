"""The operators, as functions with types and documentation. The arithmetic is in the C++ library."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

_pool1d = torch.ops.contextpool.pool1d.default  # looked up once: by name it costs two microseconds a call
_pool2d = torch.ops.contextpool.pool2d.default
_add_layer_norm = torch.ops.contextpool.add_layer_norm.default
_bias_gelu = torch.ops.contextpool.bias_gelu.default
_cross_entropy = torch.ops.contextpool.cross_entropy.default
_dynamic_convolution = torch.ops.contextpool.dynamic_convolution.default
_predict_windows = torch.ops.contextpool.predict_windows.default
_rotary = torch.ops.contextpool.rotary.default
_short_convolution = torch.ops.contextpool.short_convolution.default
_rotary_qkv = torch.ops.contextpool.rotary_qkv.default


def pool1d(
    x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool = False, algorithm: str = "auto"
) -> Tensor:
    """Replace each target by a weighted average of the tokens around it.

    ``y_i = sum_j p_ij x_j`` with ``p_ij`` proportional to ``exp(log_weight_j - (i - j)**2 / (2 sigma_i**2))``.

    Args:
        x: features, ``[..., N, D]``; float64, float32, bfloat16 or float16, any strides.
        log_weight: each token's log weight in any average, ``[..., N]``; float64 beside float64 ``x``, else
            float32. ``-inf`` removes a token (padding), whatever its features hold.
        sigma: width of each target's window in tokens, ``[..., M]`` with ``M <= N``, dtype as ``log_weight``. Target
            ``m`` sits at position ``N - M + m``: ``M == N`` is the ordinary case, ``M == 1`` a step of decoding.
            ``sigma <= 0`` leaves the token itself.
        causal: sources after the target do not exist.
        algorithm: ``"auto"``; or ``"dense"`` (every source), ``"window"`` (the sources that matter) or ``"pyramid"``
            (linear time). They differ in speed only.

    Returns:
        ``y``, ``[..., M, D]``, contiguous, in the dtype of ``x``. A target without any source gives 0. Where ``x``,
        ``[B, G, N, D]``, has the groups of a token side by side, as the transpose of ``[B, N, G, D]``, so has ``y``;
        then none is copied (but on CUDA rows of half types that do not start at 16 bytes).

    Differentiable once, in ``x``, ``log_weight`` and ``sigma``; works under ``torch.compile``, ``torch.export`` and
    autocast. The same bits come out of every run, whatever the number of threads.
    """
    try:
        if not causal and algorithm == "auto":  # an argument by name costs a microsecond
            return cast(Tensor, _pool1d(x, log_weight, sigma))
        return cast(Tensor, _pool1d(x, log_weight, sigma, causal=causal, algorithm=algorithm))
    except RuntimeError as error:
        _explain(error, "pool1d")
        raise


def pool2d(
    x: Tensor, log_weight: Tensor, sigma: Tensor, stride: int | Sequence[int] = (1, 1), algorithm: str = "auto"
) -> Tensor:
    """Replace each target by a weighted average of the pixels around it.

    ``y_i = sum_j p_ij x_j`` with ``p_ij`` proportional to ``exp(log_weight_j - d_ij**2 / (2 sigma_i**2))``, where
    ``d_ij`` is the distance between pixels ``i`` and ``j``.

    Args:
        x: features, ``[B, C, H, W]``; float64, float32, bfloat16 or float16, contiguous or channels-last (other strides
            are copied).
        log_weight: each pixel's log weight in any average, ``[B, H, W]``; float64 beside float64 ``x``, else float32.
            ``-inf`` removes a pixel (padding), whatever its features hold.
        sigma: width of each target's window in pixels, ``[B, ceil(H / stride[0]), ceil(W / stride[1])]``, dtype as
            ``log_weight``. ``sigma <= 0`` leaves the pixel itself.
        stride: target ``(ho, wo)`` sits on pixel ``(ho * stride[0], wo * stride[1])``. One number stands for both.
        algorithm: ``"auto"``; or ``"dense"`` (every source) or ``"window"`` (the sources that matter). They differ in
            speed only.

    Returns:
        ``y``, ``[B, C, ceil(H / stride[0]), ceil(W / stride[1])]``, in the dtype and memory format of ``x``. A target
        without any source gives 0.

    Differentiable once, in ``x``, ``log_weight`` and ``sigma``; works under ``torch.compile``, ``torch.export`` and
    autocast. The same bits come out of every run, whatever the number of threads.
    """
    try:
        return cast(Tensor, _pool2d(x, log_weight, sigma, stride=stride, algorithm=algorithm))
    except RuntimeError as error:
        _explain(error, "pool2d")
        raise


def short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, left: int = 0, residual: bool = False
) -> Tensor:
    """Mix each token with its neighbours, each channel by itself: ``y_i = [x_i +] b + sum_k w_k x_(i - left + k)``.

    Args:
        x: features, ``[..., N, D]``; float64, float32, bfloat16 or float16, any strides.
        weight: ``[D, K]``, of any of these dtypes. A tap whose token would lie outside the row is left out.
        bias: ``[D]``, in the dtype of ``weight``.
        left: how many taps lie before the token: ``K - 1`` is causal, ``K // 2`` (``K`` odd) centred.
        residual: add ``x``.

    Returns:
        ``y``, of the shape and dtype of ``x``, contiguous. Sums are in float32 (float64 for float64).

    Differentiable once. It is one pass over memory, on CUDA for up to 32 taps and all dtypes but float64 (else a sum of
    shifted products there). The bits of ``y_i`` depend on the ``K`` tokens that it is made of alone, and those of
    gradients not on the number of threads.
    """
    return cast(Tensor, _short_convolution(x, weight, bias, left=left, residual=residual))


def dynamic_convolution(
    x: Tensor, inner: Tensor, up: Tensor, weight: Tensor, left: int = 0, residual: bool = False
) -> Tensor:
    """Mix each token with its neighbours, each channel by itself, with weights that depend on the token.

    ``y_i = [x_i +] sum_k (w_k + U_k p_i) x_(i - left + k)`` with ``p_i`` a vector of ``r`` numbers: coefficients of low
    rank.

    Args:
        x: features, ``[..., N, D]``; float64, float32, bfloat16 or float16, any strides.
        inner: ``p``, ``[..., M, r]`` with ``M <= N``, of any of these dtypes. Target ``m`` sits at token ``N - M + m``:
            ``M == N`` is the ordinary case, ``M == 1`` a step of decoding.
        up: ``U``, ``[K, D, r]``.
        weight: ``w``, ``[D, K]``. A tap whose token would lie outside the row is left out.
        left: how many taps lie before the token: ``K - 1`` is causal, ``K // 2`` (``K`` odd) centred.
        residual: add ``x``.

    Returns:
        ``y``, ``[..., M, D]``, contiguous, in the dtype of ``x``. Sums are in float32 (float64 for float64).

    Differentiable once. The ``K D`` coefficients of a token are never stored, neither for the backward; the bits of
    ``y_i`` depend on ``p_i`` and the ``K`` tokens that it is made of alone, and those of gradients not on the number of
    threads. On CUDA this holds for up to 4 taps of rank 16 and not for float64; the rest is a sum of shifted products.
    """
    return cast(Tensor, _dynamic_convolution(x, inner, up, weight, left=left, residual=residual))


def rotary(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Turn each pair of features ``(2k, 2k + 1)`` of a token by the angle whose cosine and sine are given.

    Args:
        x: features, ``[B, N, ..., F]``; float64, float32, bfloat16 or float16, any strides. Half types are turned in
            float32.
        cos: ``[N, F / 2]``, or ``[B, N, F / 2]`` where rows differ; float64 beside float64 ``x``, else float32. A
            constant, as is
        sin: of the same shape.
        back: turn by the negative angle.

    Returns:
        A contiguous tensor of the shape and dtype of ``x``.
    """
    return cast(Tensor, _rotary(x, cos, sin, back=back))


def rotary_qkv(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, keys and values of joined projections, queries and keys turned as :func:`rotary` turns them.

    Args:
        qkv: ``[B, N, 3, H, F]``.
        cos: as for :func:`rotary`, and so is
        sin.

    Returns:
        q, k and v, ``[B, N, H, F]`` each, contiguous. The gradient of ``qkv`` is written in one pass.
    """
    return cast(tuple[Tensor, Tensor, Tensor], _rotary_qkv(qkv, cos, sin))


def add_layer_norm(
    x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """``x + branch`` and the layer norm of it, in one pass on CUDA, backward too.

    Args:
        x: the residual stream, ``[..., D]``.
        branch: what joins it, of the same shape; the sum has the wider of the two dtypes, and so must one of them.
        weight: of the norm, ``[D]``, as is
        bias.
        eps: added to the variance.
        dtype: of the norm; the sum's unless given. ``torch.bfloat16`` spares a cast where a product in bfloat16 follows.

    Returns:
        The sum and its norm, contiguous. Gradients are the same bits in every run.
    """
    total, normed, _, _ = _add_layer_norm(x, branch, weight, bias, eps=eps, dtype=dtype)
    return total, normed


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """``gelu(x + bias)``, exact, computed in float32 (float64 for float64), in one pass on CUDA, backward too.

    Args:
        x: ``[..., D]``: a matrix product without its bias.
        bias: ``[D]``, of any floating-point dtype.

    Returns:
        A contiguous tensor of the shape and dtype of ``x``. Gradients are the same bits in every run.
    """
    return cast(Tensor, _bias_gelu(x, bias))


def cross_entropy(logits: Tensor, target: Tensor, ignored: int = -100) -> Tensor:
    """The cross-entropy of each row, in float32 (float64 for float64), without a wider copy of the logits on CUDA.

    Args:
        logits: ``[rows, classes]``.
        target: the right class of each row, ``[rows]``, int64. One out of range is an error on the CPU; on CUDA its loss
            and gradient are NaN.
        ignored: the target of rows whose loss and gradient are 0.

    Returns:
        The losses, ``[rows]``. The gradient of the logits has their dtype.
    """
    return cast(Tensor, _cross_entropy(logits, target, ignored=ignored)[0])


def predict_windows(
    product: Tensor,
    bias: Tensor,
    weight: Tensor,
    out_bias: Tensor,
    left: int,
    sizes: int,
    size_range: float = 0.0,
    shift: float = 0.0,
    least: float = 0.0,
    span: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log weights and sizes from the first matrix product of a predictor on rows, in one pass on CUDA, backward too.

    With ``h_j = gelu(bias + sum_k product[:, j - left + k, k H:(k + 1) H])`` and ``u_i = sum_k weight[:, :, k] h_(i - left + k)``,
    where tokens outside of the row count 0, the first channels of ``u + out_bias`` are log weights. The last ``sizes``
    become ``least + span * sigmoid(shift + out_bias + R tanh(u / R))`` with ``R = size_range``, or with ``u`` in place
    of ``R tanh(u / R)`` where ``R`` is 0.

    Args:
        product: ``[B, N, taps * H]``: features times the first layer's weights, tap by tap.
        bias: the first layer's, ``[H]``.
        weight: the second layer's, ``[channels, H, taps]``.
        out_bias: the second layer's, ``[channels]``.
        left: how many tokens before its own a channel's first tap falls on; ``taps - 1`` is causal.
        sizes: how many of the channels are sizes.

    Returns:
        ``log_weight`` ``[B, channels - sizes, N]`` and ``sigma`` ``[B, sizes, N]``, in float32 (float64 for float64).
        Gradients are the same bits in every run. Differentiable once.
    """
    log_weight, sigma, _ = _predict_windows(
        product, bias, weight, out_bias, left, sizes, float(size_range), float(shift), float(least), float(span)
    )
    return log_weight, sigma


def _explain(error: RuntimeError, name: str) -> None:
    """Torch's errors of C++ operators under torch.func or forward-mode differentiation name neither them nor a way."""
    if "functorch transforms" in str(error) or "jvp is not implemented" in str(error):
        raise NotImplementedError(
            f"contextpool::{name}: derivatives by torch.func (grad, vjp, jvp, ...) and forward-mode differentiation "
            "are not available; use autograd (backward, torch.autograd.grad); torch.vmap works without derivatives"
        ) from error
