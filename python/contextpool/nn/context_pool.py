"""The ContextPool module: predicts how much each token counts and how far each target looks, then pools."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn

from ._mixer import Mixer, MixerCache
from ._option_table import Locality, Predictor, SizeNorm, Weights
from ._options import Options
from ._padding import Lengths, real_tokens
from ._pooling import Prediction, at_targets, log_weights, pool_map, pool_row, predicted_sizes
from ._predictor import Predictor as _Predictor
from ._predictor import no_autocast

Device = torch.device | str | int | None


class Windows(NamedTuple):
    """What was predicted, for looking at; with G > 1 groups both have G as their second dimension."""

    #: ``[B, N]`` or ``[B, H, W]``: the log weight of each token, ``-inf`` at padding. For weights "unnormalized" the
    #: weight itself (it has a sign), 0 at padding; for "nonlocal" None: there is a weight for each pair of tokens.
    log_weight: Tensor | None
    #: ``[B, N]`` or ``[B, Ho, Wo]``: sigma of each target, or R of "adaptive_window"; 0 at padding. None where the
    #: locality has no sizes.
    sigma: Tensor | None


class ContextPoolCache(MixerCache):
    """What :meth:`ContextPool1d.step` remembers of the tokens seen so far: features, weights, and keys of
    "nonlocal"."""


class _ContextPool(Mixer):
    """What rows and maps have in common."""

    def __init__(self, options: Options, dims: int, device: Device, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.options = options
        pairwise, features = options.pairwise_weights, options.features
        with nullcontext() if device is None else torch.device(device):
            self.predictor = _Predictor(options, dims) if options.channels else None
            self.theta = nn.Linear(features, features, bias=False) if pairwise else None
            self.phi = nn.Linear(features, features, bias=False) if pairwise else None
        if dtype is not None:
            self.to(dtype)

    def reset_parameters(self) -> None:
        """Draws every parameter anew by torch's own rule, then sets the sizes."""
        for part in (self.predictor, self.theta, self.phi):
            if part is not None:
                part.reset_parameters()

    def reset_sizes(self) -> None:
        """Makes initial_sigma hold, whatever comes in, for a model that initialises all of its parameters itself.

        In the predictor's last layer the size channel gets weight 0 and the bias that gives it; the weight channel too
        gets weight and bias 0 where size_norm is "channels". Sizes by "softmax" sum to 1 over a row, so no bias can
        set them: they start at ``sigma = r n / N``.
        """
        if self.predictor is not None:
            self.predictor.reset_sizes()

    def finish_initialisation(self) -> None:
        """:meth:`reset_sizes`, as for every mixer."""
        self.reset_sizes()

    def extra_repr(self) -> str:
        return str(self.options)

    def __prepare_scriptable__(self) -> None:
        """What torch.jit.script asks first."""
        raise NotImplementedError(
            f"{self.options.who}: torch.jit.script is not supported; use torch.export, torch.compile or, for inputs of "
            "one shape, torch.jit.trace"
        )

    def _check_dtype(self, x: Tensor) -> None:
        """Inputs are of the dtype of the parameters, as for torch's own layers, unless autocast casts them."""
        layer = self.theta if self.predictor is None else self.predictor.layers[0]
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor) or weight.dtype == x.dtype or not weight.is_floating_point():
            return
        if not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{self.options.who}: x is {x.dtype}, but the parameters are {weight.dtype}; convert one of them "
                f"(module.to({x.dtype}) or x.to({weight.dtype})), or call the module under torch.autocast"
            )

    def _windows(
        self, x: Tensor, prediction: Prediction, padded: Tensor | None, sources: list[int], targets: list[int]
    ) -> Windows:
        log_weight, sigma = None, prediction.sizes
        if self.options.weights == "unnormalized":
            log_weight = prediction.weights
            if log_weight is not None and padded is not None:
                log_weight = log_weight.masked_fill(padded.unsqueeze(1), 0)
        elif not self.options.pairwise_weights:
            tokens = 1
            for size in sources:
                tokens = tokens * size
            log_weight = log_weights(self.options, x, tokens, prediction, padded)

        def shaped(values: Tensor | None, shape: list[int]) -> Tensor | None:
            if values is None:
                return None
            values = torch.unflatten(values, 2, shape)
            return values.squeeze(1) if self.options.groups == 1 else values

        return Windows(shaped(log_weight, sources), shaped(sigma, targets))


class ContextPool1d(_ContextPool):
    """Replaces each token of a row by an average of the tokens around it, with weights and sizes that it predicts.

    ``y_i = sum_j p_ij x_j`` with ``p_ij`` proportional to ``exp(l_j) g_ij``, the window
    ``g_ij = exp(-(i - j)**2 / (2 sigma_i**2))``, ``sigma_i = ratio * n * s_i`` and ``(l, s)`` predicted from ``x``.

    Args:
        features: D of x ``[B, N, D]``, C of x ``[B, C, H, W]``.
        predictor: what predicts weights and sizes. "conv": two convolutions along the row or over the map. "mlp": each
            token by itself. "attention": another name of weights ``nonlocal``.
        weights: how much a token counts in any average. "softmax": ``exp(l_j)``, normalised over the window.
            "unnormalized": as predicted, of any sign: ``y_i = sum_j w_j g_ij x_j / sum_j g_ij``. "uniform": all alike.
            "nonlocal": ``exp(theta(x_i)^T phi(x_j))``, time and memory being quadratic in the length.
        locality: the window ``g_ij``, with t = |i - j|. "gaussian": ``exp(-t^2 / (2 sigma_i^2))``. "none": 1.
            "fixed_window": 1 for ``t <= window``, else 0. "adaptive_window": ``clamp(1 + (R_i - t) / 2, 0, 1)``, the
            predicted sizes being ``R_i``. "random_sparse": 1 for the token itself and for 8 places drawn once from
            (``seed``, ``layer``, i, k), else 0.
        size_norm: how sizes come to lie in [0, 1]. "sigmoid": each by itself. "softmax": softmax over the tokens of the
            row, so not causal. "channels": softmax over the weight and the size of a token.
        ratio: r: the largest size, as a share of the length n.
        reference_length: n; 0: each row's own length without padding, on maps half of height + width.
        usual_length: the length at which ``initial_sigma`` holds where ``size_range`` and ``reference_length`` are 0.
        initial_sigma: the size at initialisation, in tokens or pixels.
        size_range: how far sizes may lie from the learnt one, as a difference of logarithms; 0: any up to r n, as in
            the paper.
        size_floor: the smallest size where ``size_range`` is not 0, as a share of ``initial_sigma``.
        hidden: channels between the predictor's two layers.
        kernel: taps of the predictor's convolutions, on maps their side; odd unless causal.
        groups: slices of the features, each with its own weights and sizes.
        causal: nothing that comes after a token reaches it; needs ``reference_length``.
        window: of ``fixed_window``: how far it reaches, in tokens or pixels.
        seed: of ``random_sparse``: what its places are drawn from.
        layer: of ``random_sparse``: the layer's number, so that layers look at different places.
        device, dtype: of the parameters, as for torch's own modules.

    Shapes: ``x [B, N, D] -> y [B, N, D]``.
    """

    # Written by scripts/option_tables.py: rows
    def __init__(
        self,
        features: int,
        *,
        predictor: Predictor = "conv",
        weights: Weights = "softmax",
        locality: Locality = "gaussian",
        size_norm: SizeNorm = "sigmoid",
        ratio: float = 0.1,
        reference_length: int = 0,
        usual_length: int = 1024,
        initial_sigma: float = 4.0,
        size_range: float = 2.0,
        size_floor: float = 0.25,
        hidden: int = 64,
        kernel: int = 3,
        groups: int = 1,
        causal: bool = False,
        window: float = 4.0,
        seed: int = 0,
        layer: int = 0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = Options(
            who="ContextPool1d",
            features=features, predictor=predictor, weights=weights, locality=locality, size_norm=size_norm,
            ratio=ratio, reference_length=reference_length, usual_length=usual_length, initial_sigma=initial_sigma,
            size_range=size_range, size_floor=size_floor, hidden=hidden, kernel=kernel, groups=groups, causal=causal,
            window=window, seed=seed, layer=layer,
        )
        # option_tables.py: end
        super().__init__(options, 1, device, dtype)

    @overload
    def forward(
        self,
        x: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        return_windows: Literal[False] = False,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        *,
        return_windows: Literal[True],
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, Windows]: ...

    @overload
    def forward(
        self,
        x: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        return_windows: bool = False,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Windows]: ...

    def forward(
        self,
        x: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        return_windows: bool = False,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Windows]:
        """Pools each row. At most one of lengths, mask and key_padding_mask; padded tokens, whatever they hold, reach
        neither the others nor the gradients.

        Args:
            x: features, ``[B, N, D]``.
            lengths: how many of each row's first tokens are real, integers ``[B]`` (a tensor or a list), from 0 to N.
            mask: which tokens are real, ``[B, N]``: bool, or integers 0 and 1.
            return_windows: also return what was predicted.
            key_padding_mask: which tokens are padding, ``[B, N]``: the polarity of ``torch.nn.MultiheadAttention``.
            context: not used; every mixer takes it.

        Returns:
            ``y [B, N, D]`` in the dtype of ``x``, 0 at padded tokens; with return_windows ``(y, Windows)``, whose
            ``log_weight`` and ``sigma`` are ``[B, N]`` (``[B, G, N]`` with groups).
        """
        self._check_input(x)
        real = real_tokens(self.options.who, x.shape[:2], x.device, lengths, mask, key_padding_mask)
        padded = None if real is None else ~real
        if padded is not None:
            x = x.masked_fill(padded.unsqueeze(2), 0)
        prediction = self._predict(x, padded)
        if self.theta is not None and self.phi is not None:
            prediction = prediction._replace(queries=self.theta(x), keys=self.phi(x))
        with no_autocast(x):
            y = pool_row(self.options, x, prediction, padded, x.shape[1]) if x.numel() else x.clone()
        if not return_windows:
            return y
        return y, self._windows(x, prediction, padded, [x.shape[1]], [x.shape[1]])

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def forward_with_windows(
        self, x: Tensor, *, mask: Tensor | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, Windows | None]:
        """:meth:`forward` with return_windows, as for every mixer."""
        return self(x, mask=mask, return_windows=True, context=context)

    def step(
        self,
        x: Tensor,
        cache: MixerCache,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """The outputs of new tokens that follow those in the cache, which then holds them too.

        What :meth:`forward` gives for these positions of the whole row. Causal modules only. The cache is part of the
        graph where gradients are recorded; decode under ``torch.no_grad()`` or ``torch.inference_mode()``.

        Args:
            x: features of the new tokens, ``[B, T, D]`` with ``T >= 1``.
            cache: ``ContextPoolCache()`` before the first step; it is changed.
            mask: which of the new tokens are real, ``[B, T]``; all unless given. The cache remembers it, so a
                left-padded batch needs it for the prompt only.
            key_padding_mask: which of them are padding, instead of mask.
            context: not used; every mixer takes it.

        Returns:
            ``y [B, T, D]``, 0 at padded tokens.
        """
        self._check_input(x)
        if not self.options.causal:
            raise ValueError("ContextPool1d: step is for causal modules; build it with causal=True")
        if x.shape[1] == 0:
            raise ValueError(f"ContextPool1d: step needs at least one new token, but x is {list(x.shape)}")
        cache.check_rows(self.options.who, x)
        fresh = real_tokens(self.options.who, x.shape[:2], x.device, None, mask, key_padding_mask)
        if fresh is not None:
            x = x.masked_fill(~fresh.unsqueeze(2), 0)
        real = cache.append_mask(fresh, x)
        padded = None if real is None else ~real
        features = cache.append("features", x)
        prediction = Prediction()
        if self.predictor is not None:
            # The new tokens and as many before them as their channels depend on.
            seen = min(cache.length, self.predictor.reach)
            near = slice(cache.length - seen, None)
            weights, sizes, _, _ = self._predict(features[:, near], None if padded is None else padded[:, near])
            if weights is not None:
                weights = cache.append("weights", weights[:, :, seen:].transpose(1, 2)).transpose(1, 2)
            prediction = Prediction(weights, None if sizes is None else sizes[:, :, seen:])
        if self.theta is not None and self.phi is not None:
            prediction = prediction._replace(queries=self.theta(x), keys=cache.append("keys", self.phi(x)))
        cache.length += x.shape[1]
        with no_autocast(x):
            return pool_row(self.options, features, prediction, padded, x.shape[1])

    def _check_input(self, x: Tensor) -> None:
        features = self.options.features
        if x.dim() != 3 or x.shape[2] != features:
            transposed = x.dim() == 3 and x.shape[1] == features
            hint = "; x.transpose(1, 2) puts the features last" if transposed else ""
            raise ValueError(f"ContextPool1d: x must be [batch, tokens, {features}], but is {list(x.shape)}{hint}")
        self._check_dtype(x)

    def _predict(self, x: Tensor, padded: Tensor | None) -> Prediction:
        if self.predictor is None:
            return Prediction()
        if self.predictor.has_windows(x, padded):
            of_operator, sizes = self.predictor.windows(x)
            return Prediction(of_operator if self.options.predicts_weights else None, sizes)
        channels = self.predictor(x, padded).transpose(1, 2)  # [B, channels, N]
        weights = channels[:, : self.options.groups] if self.options.predicts_weights else None
        return Prediction(weights, self._sizes(channels, padded))

    def _sizes(self, channels: Tensor, padded: Tensor | None) -> Tensor | None:
        """sigma of each token, ``[B, G, N]``; 0 at padded ones."""
        if not self.options.predicts_sizes:
            return None
        length: float | Tensor = self.options.reference_length or channels.shape[2]
        if padded is not None and not self.options.reference_length:
            length = (~padded).sum(1).to(channels.dtype).view(-1, 1, 1)
        sizes = predicted_sizes(self.options, channels, padded, length)
        return sizes if padded is None else sizes.masked_fill(padded.unsqueeze(1), 0)


class ContextPool2d(_ContextPool):
    """Replaces each pixel of a map by an average of the pixels around it, with weights and sizes that it predicts.

    The formula of :class:`ContextPool1d` with the distance between pixels for ``|i - j|`` and ``(H + W) / 2`` for n.
    With a stride it takes the place of a pooling layer: target ``(ho, wo)`` sits on pixel
    ``(ho * stride[0], wo * stride[1])``.

    Args: as :class:`ContextPool1d`, with defaults for maps, without causal, and with stride (one number for both).

    Shapes: ``x [B, C, H, W] -> y [B, C, ceil(H / stride[0]), ceil(W / stride[1])]``.
    """

    # Written by scripts/option_tables.py: maps
    def __init__(
        self,
        features: int,
        *,
        predictor: Predictor = "conv",
        weights: Weights = "softmax",
        locality: Locality = "gaussian",
        size_norm: SizeNorm = "sigmoid",
        ratio: float = 0.05,
        reference_length: int = 0,
        usual_length: int = 14,
        initial_sigma: float = 0.5,
        size_range: float = 2.0,
        size_floor: float = 0.25,
        hidden: int = 24,
        kernel: int = 3,
        groups: int = 1,
        window: float = 4.0,
        seed: int = 0,
        layer: int = 0,
        stride: int | tuple[int, int] = 1,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options = Options(
            who="ContextPool2d",
            features=features, predictor=predictor, weights=weights, locality=locality, size_norm=size_norm,
            ratio=ratio, reference_length=reference_length, usual_length=usual_length, initial_sigma=initial_sigma,
            size_range=size_range, size_floor=size_floor, hidden=hidden, kernel=kernel, groups=groups, causal=False,
            window=window, seed=seed, layer=layer,
        )
        # option_tables.py: end
        super().__init__(options, 2, device, dtype)
        self.stride = (stride, stride) if isinstance(stride, int) else (stride[0], stride[1])
        if min(self.stride) < 1:
            raise ValueError(f"ContextPool2d: stride must be positive, but is {stride}")

    def extra_repr(self) -> str:
        return f"{self.options}, stride={self.stride}"

    @overload
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        return_windows: Literal[False] = False,
        context: Tensor | None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        return_windows: Literal[True],
        context: Tensor | None = None,
    ) -> tuple[Tensor, Windows]: ...

    @overload
    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_windows: bool = False, context: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Windows]: ...

    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_windows: bool = False, context: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Windows]:
        """Pools each map.

        Args:
            x: features, ``[B, C, H, W]``, in any memory format (``channels_last`` is one of that shape). A tensor of
                shape ``[B, H, W, C]`` is refused unless H is C, when it cannot be told apart.
            mask: which pixels are real, ``[B, H, W]``: bool, or integers 0 and 1. Padded pixels, whatever they hold,
                reach neither the others nor the gradients.
            return_windows: also return what was predicted.
            context: not used; every mixer takes it.

        Returns:
            ``y [B, C, Ho, Wo]`` in the dtype of ``x``, 0 at padded pixels; with return_windows ``(y, Windows)``, with
            ``log_weight [B, H, W]`` and ``sigma [B, Ho, Wo]`` (``[B, G, ...]`` with groups).
        """
        self._check_input(x)
        real = real_tokens(self.options.who, (x.shape[0], x.shape[2], x.shape[3]), x.device, mask=mask)
        padded = None if real is None else ~real
        if padded is not None:
            x = x.masked_fill(padded.unsqueeze(1), 0)
        prediction = self._predict(x, padded)
        if self.theta is not None and self.phi is not None:
            targets = at_targets(self.stride, x).flatten(2).transpose(1, 2)
            prediction = prediction._replace(
                queries=self.theta(targets), keys=self.phi(x.flatten(2).transpose(1, 2))
            )
        with no_autocast(x):
            if x.numel():
                y = pool_map(self.options, self.stride, x, prediction, padded)
            else:
                y = at_targets(self.stride, x).clone()
        if not return_windows:
            return y
        flat_padded = None if padded is None else padded.flatten(1)
        return y, self._windows(x, prediction, flat_padded, list(x.shape[2:]), list(y.shape[2:]))

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def forward_with_windows(
        self, x: Tensor, *, mask: Tensor | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, Windows | None]:
        """:meth:`forward` with return_windows, as for every mixer."""
        return self(x, mask=mask, return_windows=True, context=context)

    def step(
        self, x: Tensor, cache: MixerCache, mask: Tensor | None = None, *, context: Tensor | None = None
    ) -> Tensor:
        """A map ``[B, C, H, W]`` has no order, so it has no steps: ValueError."""
        raise ValueError("ContextPool2d: a map has no order, so it has no steps")

    def _check_input(self, x: Tensor) -> None:
        features = self.options.features
        if x.dim() != 4 or x.shape[1] != features:
            last = x.dim() == 4 and x.shape[3] == features
            hint = "; x.permute(0, 3, 1, 2) puts the channels second" if last else ""
            raise ValueError(
                f"ContextPool2d: x must be [batch, {features}, height, width], but is {list(x.shape)}{hint}"
            )
        self._check_dtype(x)

    def _predict(self, x: Tensor, padded: Tensor | None) -> Prediction:
        if self.predictor is None:
            return Prediction()
        channels = self.predictor(x, padded)  # [B, channels, H, W]
        weights = channels[:, : self.options.groups].flatten(2) if self.options.predicts_weights else None
        return Prediction(weights, self._sizes(channels, padded))

    def _sizes(self, channels: Tensor, padded: Tensor | None) -> Tensor | None:
        """sigma at the targets, ``[B, G, Ho Wo]``; 0 at padded ones."""
        if not self.options.predicts_sizes:
            return None
        height, width = channels.shape[2:]
        flat_padded = None if padded is None else padded.flatten(1)
        length: float | Tensor = self.options.reference_length or (height + width) / 2
        if padded is not None and not self.options.reference_length:
            # Without the rows and columns that are all padding.
            own = ((~padded).any(2).sum(1) + (~padded).any(1).sum(1)).to(channels.dtype) / 2
            length = own.view(-1, 1, 1)
        sizes = predicted_sizes(self.options, channels.flatten(2), flat_padded, length)
        sizes = torch.unflatten(sizes, 2, (height, width))
        if padded is not None:
            sizes = sizes.masked_fill(padded.unsqueeze(1), 0)
        return at_targets(self.stride, sizes).flatten(2)
