"""m(X): the two small layers that say how much each token counts and how far it looks.

``channels = layer2(gelu(layer1(x)))``, exact gelu; both layers convolutions ("conv") or per token ("mlp"). Padded
tokens are 0 before each layer, as what lies beyond the ends is. With R = size_range the size channel is
``bias + R tanh((channel - bias) / R)``: the learnt size, and a bounded part that depends on the token.

The layers are torch's own kinds, built and called as those are: hooks fire, adapters wrap them, and their parameters may
be away in between. Only where a call would be no more than the class's forward do rows on CUDA get weights and sizes by
one operator from the layers' parameters (Predictor.windows).
"""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops import predict_windows
from ._options import Options

# Asked once: torch.compile cannot trace the question with every torch.
_WITH_AUTOCAST = frozenset(kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind))


def no_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Arithmetic in the dtypes as they are, on the device of x."""
    kind = x.device.type
    active = kind in _WITH_AUTOCAST and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if active else nullcontext()


def weight_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def row_product(x: Tensor, weight: Tensor) -> Tensor:
    """``x [B, N, I]`` times ``weight [O, I, K]``, tap by tap: ``[B, N, K O]``."""
    return x @ weight.permute(1, 2, 0).flatten(1)


def row_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, left: int) -> Tensor:
    """A convolution along a row as one matrix product and a sum of shifted rows.

    Row i of the product is made of token i alone, so to the bit nothing reaches a token from where no tap looks, and x
    is used as it lies. ``x [B, N, I]``, ``weight [O, I, K]``; tap k of output i falls on token ``i - left + k``.
    """
    outputs, _, taps = weight.shape
    product = row_product(x, weight)
    if taps == 1:
        return product if bias is None else product + bias
    rows = F.pad(product, (0, 0, left, taps - 1 - left))
    total = rows.new_zeros(()) if bias is None else bias
    for k in range(taps):
        total = total + rows[:, k : k + x.shape[1], k * outputs : (k + 1) * outputs]
    return total


class Bounded:
    """What the last layer has beside torch's: its last channels, the sizes of the groups, stay within size_range of
    their bias, where there are such options."""

    sizes: Options | None = None  # whole: torch.compile would take a number by itself for one that changes

    def bounded(self, channels: Tensor, bias: Tensor | None) -> Tensor:
        """``[..., channels]`` to the same."""
        if self.sizes is None or bias is None:
            return channels
        groups, reach = self.sizes.groups, self.sizes.size_range
        learnt = bias[-groups:]
        sizes = learnt + reach * torch.tanh((channels[..., -groups:] - learnt) / reach)
        return torch.cat((channels[..., :-groups], sizes), -1)


class RowConvolution(nn.Conv1d, Bounded):
    """A Conv1d ``[B, I, N] -> [B, O, N]`` of which ``padding`` taps look back and the others ahead."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _in_dtype_of(x, self)
        y = row_convolution(x.transpose(1, 2), weight, bias, int(self.padding[0]))
        return self.bounded(y, bias).transpose(1, 2)


class MapConvolution(nn.Conv2d, Bounded):
    """A Conv2d ``[B, I, H, W] -> [B, O, H, W]``."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _in_dtype_of(x, self)
        y = F.conv2d(x, weight, bias, padding=self.padding)
        return self.bounded(y.movedim(1, -1), bias).movedim(-1, 1)


class PerToken(nn.Linear, Bounded):
    """A Linear ``[..., I] -> [..., O]``."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _in_dtype_of(x, self)
        y = row_convolution(x.flatten(1, -2), weight.unsqueeze(-1), bias, 0)
        return self.bounded(y, bias).reshape(*x.shape[:-1], self.out_features)


Layer = RowConvolution | MapConvolution | PerToken


def _in_dtype_of(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor | None]:
    """The layer's parameters; in float32 (float64) beside such x, since a layer in half precision may stand there."""
    weight, bias = layer.weight, layer.bias
    if x.dtype not in (torch.float32, torch.float64) or x.dtype == weight.dtype:
        return weight, bias
    return weight.to(x.dtype), None if bias is None else bias.to(x.dtype)


def _is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a call is no more than the class's forward: no hooks, nothing wrapped around it or put in its place."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return type(module) in kinds and not any(hooks) and "forward" not in vars(module)


class Predictor(nn.Module):
    """``x [B, N, D] -> [B, N, channels]`` or ``x [B, C, H, W] -> [B, channels, H, W]``, in float32 (float64 for such
    x).

    The weights of the groups come first, then their sizes. The second layer is computed in float32 under autocast too.
    """

    def __init__(self, options: Options, dims: int) -> None:
        super().__init__()
        self.options, self.dims = options, dims
        self.mlp = options.predictor == "mlp"
        names = ("fc1", "fc2") if self.mlp else ("conv1", "conv2")
        widths = (options.features, options.hidden, options.channels)
        for name, inputs, outputs in zip(names, widths, widths[1:]):
            setattr(self, name, self._layer(inputs, outputs))
        if options.bounded_sizes and options.predicts_sizes:
            self.layers[1].sizes = options
        self.reset_sizes()

    def _layer(self, inputs: int, outputs: int) -> Layer:
        kernel = self.options.kernel
        if self.mlp:
            return PerToken(inputs, outputs)
        if self.dims == 1:
            return RowConvolution(inputs, outputs, kernel, padding=kernel - 1 if self.options.causal else kernel // 2)
        return MapConvolution(inputs, outputs, kernel, padding=kernel // 2)

    @property
    def layers(self) -> tuple[Layer, Layer]:
        first, second = (self.fc1, self.fc2) if self.mlp else (self.conv1, self.conv2)
        return cast(Layer, first), cast(Layer, second)

    @property
    def reach(self) -> int:
        """How many tokens before its own a causal channel depends on."""
        return 0 if self.mlp else 2 * (self.options.kernel - 1)

    def reset_parameters(self) -> None:
        for layer in self.layers:
            layer.reset_parameters()
        self.reset_sizes()

    @torch.no_grad()
    def reset_sizes(self) -> None:
        if not self.options.predicts_sizes:
            return
        weight, bias = self.layers[1].weight, self.layers[1].bias
        assert bias is not None
        if self.options.size_norm == "channels":
            weight.zero_()
            bias.zero_()
        weight[-self.options.groups :] = 0
        bias[-self.options.groups :] = self.options.size_bias

    def forward(self, x: Tensor, padded: Tensor | None) -> Tensor:
        first, second = self.layers
        h = F.gelu(first(self._to_layers(x)))
        if padded is not None:
            h = h.masked_fill(padded.unsqueeze(-1 if self.mlp else 1), 0)
        with no_autocast(x):
            return self._from_layers(second(h.to(weight_dtype(x))))

    def has_windows(self, x: Tensor, padded: Tensor | None) -> bool:
        """Whether :meth:`windows` gives what :meth:`forward` and the map to sizes would, up to rounding."""
        return x.is_cuda and padded is None and self._is_for_operator()

    def _is_for_operator(self) -> bool:
        o = self.options
        # The operator takes a number, where torch.compile has a symbol for the length and torch.jit.trace would fix it.
        tracing = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
        known = bool(o.reference_length) or not tracing
        gaussian = o.locality == "gaussian" and o.size_norm == "sigmoid"
        plain = _is_plain(self, (Predictor,)) and all(_is_plain(f, (RowConvolution, PerToken)) for f in self.layers)
        return self.dims == 1 and gaussian and known and plain

    def windows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log weights ``[B, G, N]``, without groups where they are not predicted, and sizes ``[B, G, N]``."""
        o, (first, second) = self.options, self.layers
        weight, bias = _in_dtype_of(x, first)
        weight, of_second = (w.unsqueeze(-1) if self.mlp else w for w in (weight, second.weight))
        assert bias is not None and second.bias is not None
        left = 0 if self.mlp else int(cast(RowConvolution, first).padding[0])
        size_map = o.size_map(o.reference_length or x.shape[1])
        return predict_windows(row_product(x, weight), bias, of_second, second.bias, left, o.groups, **size_map)

    def _to_layers(self, x: Tensor) -> Tensor:
        """A Linear has its channels last, convolutions theirs second."""
        if self.mlp:
            return x.movedim(1, -1) if self.dims == 2 else x
        return x.transpose(1, 2) if self.dims == 1 else x

    def _from_layers(self, channels: Tensor) -> Tensor:
        if self.mlp:
            return channels.movedim(-1, 1) if self.dims == 2 else channels
        return channels.transpose(1, 2) if self.dims == 1 else channels
