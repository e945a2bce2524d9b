"""m(X): the two small layers that say how much each token counts and how far it looks.

``channels = layer2(gelu(layer1(x)))``, exact gelu; both layers convolutions ("conv") or per token ("mlp"). Padded tokens
are 0 before each layer, as what lies beyond the ends is. With R = size_range the size channel is
``bias + R tanh((channel - bias) / R)``: the learnt size, and a bounded part that depends on the token.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def row_convolution(x: Tensor, weight: Tensor, bias: Tensor, left: int) -> Tensor:
    """A convolution along a row as one matrix product and a sum of shifted rows.

    Row i of the product is made of token i alone, so to the bit nothing reaches a token from where no tap looks, and x
    is used as it lies. ``x [B, N, I]``, ``weight [O, I, K]``; tap k of output i falls on token ``i - left + k``.
    """
    outputs, _, taps = weight.shape
    product = x @ weight.permute(1, 2, 0).flatten(1)
    if taps == 1:
        return product + bias
    rows = F.pad(product, (0, 0, left, taps - 1 - left))
    total = bias
    for k in range(taps):
        total = total + rows[:, k : k + x.shape[1], k * outputs : (k + 1) * outputs]
    return total


class RowConvolution(nn.Conv1d):
    """A Conv1d whose outputs are as many as its inputs, ``[B, I, N] -> [B, O, N]``; causal: no tap looks ahead."""

    def __init__(self, inputs: int, outputs: int, kernel: int, causal: bool) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel - 1 if causal else kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _in_dtype_of(x, self)
        return row_convolution(x.transpose(1, 2), weight, bias, int(self.padding[0])).transpose(1, 2)


class MapConvolution(nn.Conv2d):
    """A Conv2d whose outputs are as many as its inputs."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _in_dtype_of(x, self)
        return F.conv2d(x, weight, bias, padding=self.padding)


class PerToken(nn.Linear):
    """A Linear over the channels of each token, ``[B, I, ...] -> [B, O, ...]``."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = _in_dtype_of(x, self)
        if x.dim() == 3:
            return row_convolution(x.transpose(1, 2), weight.unsqueeze(-1), bias, 0).transpose(1, 2)
        return F.conv2d(x, weight[:, :, None, None], bias)


Layer = RowConvolution | MapConvolution | PerToken


def _in_dtype_of(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """The layer's parameters; in float32 (float64) beside such x, since a layer in half precision may stand there."""
    assert layer.bias is not None
    if x.dtype not in (torch.float32, torch.float64) or x.dtype == layer.weight.dtype:
        return layer.weight, layer.bias
    return layer.weight.to(x.dtype), layer.bias.to(x.dtype)


class Predictor(nn.Module):
    """``x [B, N, D] -> [B, N, channels]`` or ``x [B, C, H, W] -> [B, channels, H, W]``, in float32 (float64 for such x).

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
        self.reset_sizes()

    def _layer(self, inputs: int, outputs: int) -> Layer:
        if self.mlp:
            return PerToken(inputs, outputs)
        if self.dims == 1:
            return RowConvolution(inputs, outputs, self.options.kernel, self.options.causal)
        return MapConvolution(inputs, outputs, self.options.kernel)

    @property
    def layers(self) -> tuple[Layer, Layer]:
        return (self.fc1, self.fc2) if self.mlp else (self.conv1, self.conv2)

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
        h = F.gelu(first(x.transpose(1, 2) if self.dims == 1 else x))
        if padded is not None:
            h = h.masked_fill(padded.unsqueeze(1), 0)
        with no_autocast(x):
            channels = self._bounded(second(h.to(weight_dtype(x))))
            return channels.transpose(1, 2) if self.dims == 1 else channels

    def _bounded(self, channels: Tensor) -> Tensor:
        """The channels ``[B, channels, ...]`` with the sizes' part that depends on the token within size_range."""
        options, bias = self.options, self.layers[1].bias
        if not (options.bounded_sizes and options.predicts_sizes) or bias is None:
            return channels
        learnt = bias[-options.groups :].to(channels.dtype).view(-1, *[1] * self.dims)
        sizes = channels[:, -options.groups :]
        sizes = learnt + options.size_range * torch.tanh((sizes - learnt) / options.size_range)
        return torch.cat((channels[:, : -options.groups], sizes), 1)
