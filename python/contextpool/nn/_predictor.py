"""m(X): the two small layers that say how much each token counts and how far it looks.

``channels = layer2(gelu(layer1(x)))``, exact gelu; both layers convolutions ("conv") or per token ("mlp"). Padded tokens
are 0 before each layer, as what lies beyond the ends is.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ._options import Options


def no_autocast(x: Tensor) -> AbstractContextManager:
    """Arithmetic in the dtypes as they are, on the device of x."""
    kind = x.device.type
    active = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
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
            if self.mlp:
                layer: nn.Module = nn.Linear(inputs, outputs)
            else:
                layer = (nn.Conv1d if dims == 1 else nn.Conv2d)(inputs, outputs, options.kernel)
            setattr(self, name, layer)
        self.reset_sizes()

    @property
    def layers(self) -> tuple[nn.Module, nn.Module]:
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
        if self.options.size_norm == "channels":
            weight.zero_()
            bias.zero_()
        weight[-self.options.groups :] = 0
        bias[-self.options.groups :] = self.options.size_bias

    def _layer(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        taps = 1 if self.mlp else self.options.kernel
        if self.dims == 1:
            left = taps - 1 if self.options.causal else taps // 2
            return row_convolution(x, weight.unsqueeze(-1) if self.mlp else weight, bias, left)
        return F.conv2d(x, weight[:, :, None, None] if self.mlp else weight, bias, padding=taps // 2)

    def forward(self, x: Tensor, padded: Tensor | None) -> Tensor:
        first, second = self.layers
        h = F.gelu(self._layer(x, first.weight, first.bias))
        if padded is not None:
            h = h.masked_fill(padded.unsqueeze(2 if self.dims == 1 else 1), 0)
        dtype = weight_dtype(x)
        with no_autocast(x):
            return self._layer(h.to(dtype), second.weight.to(dtype), second.bias.to(dtype))
