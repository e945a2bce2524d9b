"""The ContextPool module: predicts how much each token counts and how far each target looks, then pools."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ._options import Locality, Options, Predictor, SizeNorm, Weights
from ._pooling import Prediction, at_targets, log_weights, normalized_sizes, pool_map, pool_row
from ._predictor import Predictor as _Predictor
from ._predictor import no_autocast

_FIRST_ROOM = 64  # tokens a cache has room for at first


class Windows(NamedTuple):
    """What was predicted, for looking at; with G > 1 groups both have G as their second dimension."""

    #: ``[B, N]`` or ``[B, H, W]``: the log weight of each token, ``-inf`` at padding. For weights "unnormalized" the
    #: weight itself (it has a sign), 0 at padding; for "nonlocal" None: there is a weight for each pair of tokens.
    log_weight: Tensor | None
    #: ``[B, N]`` or ``[B, Ho, Wo]``: sigma of each target, or R of "adaptive_window"; 0 at padding. None where the
    #: locality has no sizes.
    sigma: Tensor | None


class ContextPoolCache:
    """What :meth:`ContextPool1d.step` remembers of the tokens seen so far.

    Room is doubled when it is full, so that appending a token costs the same on average however many there are.
    """

    def __init__(self) -> None:
        self.length = 0
        self._stores: dict[str, Tensor] = {}  # each [B, room, K]

    def append(self, name: str, rows: Tensor) -> Tensor:
        """Writes rows ``[B, T, K]`` behind the first ``length`` ones of a store; returns all, ``[B, length + T, K]``."""
        needed = self.length + rows.shape[1]
        store = self._stores.get(name)
        if store is None or store.shape[1] < needed:
            room = max(_FIRST_ROOM, needed) if store is None else 2 * needed
            larger = rows.new_empty(rows.shape[0], room, rows.shape[2])
            if store is not None:
                larger[:, : self.length] = store[:, : self.length]
            self._stores[name] = store = larger
        store[:, self.length : needed] = rows
        return store[:, :needed]

    @property
    def rows(self) -> int | None:
        """The batch's size; None before the first step."""
        return next((store.shape[0] for store in self._stores.values()), None)

    def reorder(self, rows: Tensor) -> None:
        """Row b becomes what row ``rows[b]`` was (int64 ``[B']``): for beam search."""
        self._stores = {name: store.index_select(0, rows) for name, store in self._stores.items()}


class _ContextPool(nn.Module):
    """What rows and maps have in common."""

    def __init__(self, options: Options, dims: int) -> None:
        super().__init__()
        self.options = options
        self.predictor = _Predictor(options, dims) if options.channels else None
        pairwise, features = options.pairwise_weights, options.features
        self.theta = nn.Linear(features, features, bias=False) if pairwise else None
        self.phi = nn.Linear(features, features, bias=False) if pairwise else None

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

    def extra_repr(self) -> str:
        return str(self.options)

    def _check_mask(self, mask: Tensor, shape: tuple[int, ...]) -> None:
        if mask.dtype != torch.bool or mask.shape != shape:
            raise ValueError(
                f"{self.options.who}: the mask of real tokens must be bool {list(shape)}, but is {mask.dtype} "
                f"{list(mask.shape)}"
            )

    def _windows(
        self, x: Tensor, prediction: Prediction, padded: Tensor | None, sources: list[int], targets: list[int]
    ) -> Windows:
        log_weight, sigma = None, prediction.sizes
        if self.options.weights == "unnormalized":
            log_weight = prediction.weights
            if padded is not None:
                log_weight = log_weight.masked_fill(padded.unsqueeze(1), 0)
        elif not self.options.pairwise_weights:
            tokens = 1
            for size in sources:
                tokens = tokens * size
            log_weight = log_weights(self.options, x, tokens, prediction, padded)

        def shaped(values: Tensor | None, shape: list[int]) -> Tensor | None:
            if values is None:
                return None
            values = values.unflatten(2, shape)
            return values.squeeze(1) if self.options.groups == 1 else values

        return Windows(shaped(log_weight, sources), shaped(sigma, targets))


class ContextPool1d(_ContextPool):
    """Replaces each token of a row by an average of the tokens around it, with weights and sizes that it predicts.

    ``y_i = sum_j p_ij x_j`` with ``p_ij`` proportional to ``exp(l_j) g_ij``, the window
    ``g_ij = exp(-(i - j)**2 / (2 sigma_i**2))``, ``sigma_i = ratio * n * s_i`` and ``(l, s)`` predicted from ``x``.

    Args:
        features: D of ``x [B, N, D]``.
        predictor: "conv" (two convolutions along the row), "mlp" (each token by itself), or "attention", another name
            of weights "nonlocal".
        weights: "softmax": ``exp(l_j)``, normalised over the window. "unnormalized": as predicted, of any sign,
            ``y_i = sum_j w_j g_ij x_j / sum_j g_ij``. "uniform": all alike. "nonlocal": ``exp(theta(x_i)^T phi(x_j))``,
            quadratic in N.
        locality: the window ``g_ij``. "gaussian"; "none": 1; "fixed_window": 1 for ``|i - j| <= window``;
            "adaptive_window": ``clamp(1 + (R_i - |i - j|) / 2, 0, 1)`` with the predicted sizes for ``R_i``;
            "random_sparse": 1 for the token itself and 8 fixed random places.
        size_norm: how sizes come to lie in [0, 1]. "sigmoid"; "softmax" over the tokens of the row; "channels":
            softmax over the weight and the size of a token.
        ratio: r, the largest size as a share of the length.
        reference_length: n; 0 takes each row's own length, without padding.
        usual_length: the length at which initial_sigma holds where reference_length is 0.
        initial_sigma: the size at initialisation, in tokens, but at most half of r n. See :meth:`reset_sizes`.
        hidden: channels between the predictor's two layers.
        kernel: taps of the predictor's convolutions, odd unless causal.
        groups: G slices of the features, each with its own weights and sizes.
        causal: nothing that comes after a token reaches it. Needs reference_length.
        window: R of "fixed_window".
        seed, layer: what the places of "random_sparse" are drawn from.

    Shapes: ``x [B, N, D] -> y [B, N, D]``.
    """

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
        hidden: int = 64,
        kernel: int = 3,
        groups: int = 1,
        causal: bool = False,
        window: float = 4.0,
        seed: int = 0,
        layer: int = 0,
    ) -> None:
        options = Options(
            "ContextPool1d", features, predictor, weights, locality, size_norm, ratio, reference_length, usual_length,
            initial_sigma, hidden, kernel, groups, causal, window, seed, layer,
        )  # fmt: skip
        super().__init__(options, dims=1)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, mask: Tensor | None = None, return_windows: bool = False
    ) -> Tensor | tuple[Tensor, Windows]:
        """Pools each row.

        Args:
            x: features, ``[B, N, D]``.
            lengths: how many of each row's first tokens are real, int64 ``[B]``; or
            mask: which tokens are real, bool ``[B, N]``. Padded tokens, whatever they hold, reach neither the others
                nor the gradients.
            return_windows: also return what was predicted.

        Returns:
            ``y [B, N, D]`` in the dtype of ``x``, 0 at padded tokens; with return_windows ``(y, Windows)``, whose
            ``log_weight`` and ``sigma`` are ``[B, N]`` (``[B, G, N]`` with groups).
        """
        self._check_input(x)
        padded = self._padded(x, lengths, mask)
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

    @torch.no_grad()
    def step(self, x: Tensor, cache: ContextPoolCache) -> Tensor:
        """The outputs of new tokens that follow those in the cache, which then holds them too.

        What :meth:`forward` gives for these positions of the whole row. Causal modules only; without gradients.

        Args:
            x: features of the new tokens, ``[B, T, D]`` with ``T >= 1``.
            cache: ``ContextPoolCache()`` before the first step; it is changed.

        Returns:
            ``y [B, T, D]``.
        """
        self._check_input(x)
        if not self.options.causal:
            raise ValueError("ContextPool1d: step is for causal modules; build it with causal=True")
        if x.shape[1] == 0:
            raise ValueError(f"ContextPool1d: step needs at least one new token, but x is {list(x.shape)}")
        if cache.rows not in (None, x.shape[0]):
            raise ValueError(f"ContextPool1d: the cache has {cache.rows} rows, but x has {x.shape[0]}")
        features = cache.append("features", x)
        prediction = Prediction()
        if self.predictor is not None:
            # The new tokens and as many before them as their channels depend on.
            seen = min(cache.length, self.predictor.reach)
            weights, sizes, _, _ = self._predict(features[:, cache.length - seen :], None)
            if weights is not None:
                weights = cache.append("weights", weights[:, :, seen:].transpose(1, 2)).transpose(1, 2)
            prediction = Prediction(weights, None if sizes is None else sizes[:, :, seen:])
        if self.theta is not None and self.phi is not None:
            prediction = prediction._replace(queries=self.theta(x), keys=cache.append("keys", self.phi(x)))
        cache.length += x.shape[1]
        with no_autocast(x):
            return pool_row(self.options, features, prediction, None, x.shape[1])

    def _check_input(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[2] != self.options.features:
            raise ValueError(
                f"ContextPool1d: x must be [batch, tokens, {self.options.features}], but is {list(x.shape)}"
            )

    def _padded(self, x: Tensor, lengths: Tensor | None, mask: Tensor | None) -> Tensor | None:
        if lengths is not None and mask is not None:
            raise ValueError("ContextPool1d: lengths and mask say the same thing; give one of them")
        if lengths is not None:
            if lengths.dtype.is_floating_point or lengths.dtype == torch.bool or lengths.shape != x.shape[:1]:
                raise ValueError(
                    f"ContextPool1d: lengths must be integers [{x.shape[0]}], but are {lengths.dtype} "
                    f"{list(lengths.shape)}"
                )
            return torch.arange(x.shape[1], device=x.device) >= lengths.unsqueeze(1)
        if mask is not None:
            self._check_mask(mask, x.shape[:2])
            return ~mask
        return None

    def _predict(self, x: Tensor, padded: Tensor | None) -> Prediction:
        if self.predictor is None:
            return Prediction()
        channels = self.predictor(x, padded).transpose(1, 2)  # [B, channels, N]
        weights = channels[:, : self.options.groups] if self.options.predicts_weights else None
        return Prediction(weights, self._sizes(channels, padded))

    def _sizes(self, channels: Tensor, padded: Tensor | None) -> Tensor | None:
        """sigma_i = r n s_i; 0 at padded tokens."""
        if not self.options.predicts_sizes:
            return None
        sizes = normalized_sizes(self.options, channels, padded)
        if self.options.reference_length or padded is None:
            sizes = sizes * (self.options.ratio * (self.options.reference_length or channels.shape[2]))
        else:
            sizes = sizes * (self.options.ratio * (~padded).sum(1).to(sizes.dtype)).view(-1, 1, 1)
        return sizes if padded is None else sizes.masked_fill(padded.unsqueeze(1), 0)


class ContextPool2d(_ContextPool):
    """Replaces each pixel of a map by an average of the pixels around it, with weights and sizes that it predicts.

    The formula of :class:`ContextPool1d` with the distance between pixels for ``|i - j|`` and ``(H + W) / 2`` for n.
    With a stride it takes the place of a pooling layer: target ``(ho, wo)`` sits on pixel
    ``(ho * stride[0], wo * stride[1])``.

    Args: as :class:`ContextPool1d`, with defaults for maps, without causal, and with stride (one number for both).

    Shapes: ``x [B, C, H, W] -> y [B, C, ceil(H / stride[0]), ceil(W / stride[1])]``.
    """

    def __init__(
        self,
        features: int,
        *,
        stride: int | tuple[int, int] = 1,
        predictor: Predictor = "conv",
        weights: Weights = "softmax",
        locality: Locality = "gaussian",
        size_norm: SizeNorm = "sigmoid",
        ratio: float = 0.05,
        reference_length: int = 0,
        usual_length: int = 14,
        initial_sigma: float = 0.5,
        hidden: int = 64,
        kernel: int = 3,
        groups: int = 1,
        window: float = 4.0,
        seed: int = 0,
        layer: int = 0,
    ) -> None:
        options = Options(
            "ContextPool2d", features, predictor, weights, locality, size_norm, ratio, reference_length, usual_length,
            initial_sigma, hidden, kernel, groups, False, window, seed, layer,
        )  # fmt: skip
        super().__init__(options, dims=2)
        self.stride = (stride, stride) if isinstance(stride, int) else (stride[0], stride[1])
        if min(self.stride) < 1:
            raise ValueError(f"ContextPool2d: stride must be positive, but is {stride}")

    def extra_repr(self) -> str:
        return f"{self.options}, stride={self.stride}"

    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_windows: bool = False
    ) -> Tensor | tuple[Tensor, Windows]:
        """Pools each map.

        Args:
            x: features, ``[B, C, H, W]``.
            mask: which pixels are real, bool ``[B, H, W]``. Padded pixels, whatever they hold, reach neither the others
                nor the gradients.
            return_windows: also return what was predicted.

        Returns:
            ``y [B, C, Ho, Wo]`` in the dtype of ``x``, 0 at padded pixels; with return_windows ``(y, Windows)``, with
            ``log_weight [B, H, W]`` and ``sigma [B, Ho, Wo]`` (``[B, G, ...]`` with groups).
        """
        if x.dim() != 4 or x.shape[1] != self.options.features:
            raise ValueError(
                f"ContextPool2d: x must be [batch, {self.options.features}, height, width], but is {list(x.shape)}"
            )
        padded = None
        if mask is not None:
            self._check_mask(mask, (x.shape[0], x.shape[2], x.shape[3]))
            padded = ~mask
            x = x.masked_fill(padded.unsqueeze(1), 0)
        prediction = self._predict(x, padded)
        if self.theta is not None and self.phi is not None:
            targets = at_targets(self.stride, x).flatten(2).transpose(1, 2)
            prediction = prediction._replace(
                queries=self.theta(targets), keys=self.phi(x.flatten(2).transpose(1, 2))
            )
        with no_autocast(x):
            empty = x.numel() == 0
            y = at_targets(self.stride, x).clone() if empty else pool_map(
                self.options, self.stride, x, prediction, padded
            )
        if not return_windows:
            return y
        flat_padded = None if padded is None else padded.flatten(1)
        return y, self._windows(x, prediction, flat_padded, list(x.shape[2:]), list(y.shape[2:]))

    def _predict(self, x: Tensor, padded: Tensor | None) -> Prediction:
        if self.predictor is None:
            return Prediction()
        channels = self.predictor(x, padded)  # [B, channels, H, W]
        weights = channels[:, : self.options.groups].flatten(2) if self.options.predicts_weights else None
        return Prediction(weights, self._sizes(channels, padded))

    def _sizes(self, channels: Tensor, padded: Tensor | None) -> Tensor | None:
        """sigma = r n s at the targets, ``[B, G, Ho Wo]``; 0 at padded ones."""
        if not self.options.predicts_sizes:
            return None
        height, width = channels.shape[2:]
        flat_padded = None if padded is None else padded.flatten(1)
        sizes = normalized_sizes(self.options, channels.flatten(2), flat_padded).unflatten(2, (height, width))
        if self.options.reference_length:
            sizes = sizes * (self.options.ratio * self.options.reference_length)
        elif padded is None:
            sizes = sizes * (self.options.ratio * (height + width) / 2)
        else:
            # Without the rows and columns that are all padding.
            length = ((~padded).any(2).sum(1) + (~padded).any(1).sum(1)).to(sizes.dtype) / 2
            sizes = sizes * (self.options.ratio * length).view(-1, 1, 1, 1)
        if padded is not None:
            sizes = sizes.masked_fill(padded.unsqueeze(1), 0)
        return at_targets(self.stride, sizes).flatten(2)
