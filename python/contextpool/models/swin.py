"""Swin transformer (Liu et al. 2021): attention in windows of a map, moved by half a window in every second block."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn.context_pool import Windows
from ._vision import (
    DEVIATION,
    PREFIXES,
    ImageClassifier,
    MapMixer,
    Mlp,
    VisionOptions,
    check_images,
    check_numbers,
    drop_path,
    drop_probability,
    initialise_transformer,
    parse_depths,
)

_WHO = "Swin"


@dataclasses.dataclass
class SwinOptions(VisionOptions):
    """Every option of the model."""

    classes: int = 1000
    image_size: int = 224
    patch: int = 4
    window: int = 7
    depths: str = "2,2,6,2"
    features: int = 96
    head_features: int = 32
    feedforward_ratio: int = 4
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    _: dataclasses.KW_ONLY
    pool_hidden: int = 12

    def check(self) -> None:
        sizes = ("classes", "image_size", "patch", "window", "features", "head_features", "feedforward_ratio")
        check_numbers(_WHO, self, sizes, ("dropout", "attention_dropout", "stochastic_depth"))
        if self.features % self.head_features:
            raise ValueError(
                f"{_WHO}: head_features must divide the {self.features} features, but are {self.head_features}"
            )
        parse_depths(_WHO, self.depths)


def _up_to_multiple(size: int, of: int) -> int:
    return (size + of - 1) // of * of


class _Side(NamedTuple):
    """How one side of a map is cut into windows."""

    size: int
    padded: int
    shift: int

    @classmethod
    def of(cls, size: int, window: int, shifted: bool) -> _Side:
        return cls(size, _up_to_multiple(size, window), window // 2 if shifted and size > window else 0)

    def regions(self, device: torch.device) -> Tensor:
        """The region of each place of the shifted side: places of one window see each other only within a region.
        Padding is -1; what the shift brought from the front to the end is 1."""
        place = torch.roll(torch.arange(self.padded, device=device), -self.shift)
        return (place < self.shift).long().masked_fill(place >= self.size, -1)


def _to_windows(x: Tensor, window: int) -> Tensor:
    """[B, H, W, C] to [B * windows, window * window, C]"""
    batch, rows, columns = x.shape[0], x.shape[1] // window, x.shape[2] // window
    x = x.reshape(batch, rows, window, columns, window, -1).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(batch * rows * columns, window * window, -1)


def _from_windows(x: Tensor, window: int, height: int, width: int) -> Tensor:
    features = x.shape[2]
    x = x.reshape(-1, height // window, width // window, window, window, features).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(-1, height, width, features)


def _visibility(rows: _Side, columns: _Side, window: int, device: torch.device) -> Tensor | None:
    """Which places of each window see which, bool [windows, window^2, window^2]; None where all see all. Every place
    sees itself, so that no row of a softmax is empty; what padding sees is cut off later."""
    if not rows.shift and not columns.shift and rows.size == rows.padded and columns.size == columns.padded:
        return None
    row, column = rows.regions(device).unsqueeze(1), columns.regions(device).unsqueeze(0)
    region = (2 * row + column).masked_fill((row < 0) | (column < 0), -1)
    places = _to_windows(region.view(1, rows.padded, columns.padded, 1), window).squeeze(2)
    here, there = places.unsqueeze(1), places.unsqueeze(2)
    return ((here == there) & (here >= 0)) | torch.eye(window * window, dtype=torch.bool, device=device)


def _position_index(window: int, device: Any) -> Tensor:
    """The row of the position table for each pair of places of a window, [window^4]."""
    place = torch.arange(window * window, device=device)

    def apart(at: Tensor) -> Tensor:
        return at.unsqueeze(1) - at.unsqueeze(0) + (window - 1)

    return (apart(place // window) * (2 * window - 1) + apart(place % window)).flatten()


class _WindowAttention(nn.Module):
    """Attention inside the windows of a map, with a learnt bias for each distance between two places."""

    index: Tensor

    def __init__(self, o: SwinOptions, features: int, shifted: bool, **kind: Any) -> None:
        super().__init__()
        self.window, self.heads, self.dropout = o.window, features // o.head_features, o.attention_dropout
        self.shifted = shifted
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * o.window - 1) ** 2, self.heads, **kind))
        self.register_buffer("index", _position_index(o.window, kind.get("device")), persistent=False)
        self.qkv = nn.Linear(features, 3 * features, **kind)
        self.proj = nn.Linear(features, features, **kind)

    def forward(self, x: Tensor) -> Tensor:
        rows = _Side.of(x.shape[1], self.window, self.shifted)
        columns = _Side.of(x.shape[2], self.window, self.shifted)
        batch = x.shape[0]
        visible = _visibility(rows, columns, self.window, x.device)
        if rows.padded > rows.size or columns.padded > columns.size:
            x = F.pad(x, (0, 0, 0, columns.padded - columns.size, 0, rows.padded - rows.size))
        moved = rows.shift > 0 or columns.shift > 0
        if moved:
            x = torch.roll(x, (-rows.shift, -columns.shift), (1, 2))
        windows = _to_windows(x, self.window)
        q, k, v = self.qkv(windows).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(
            q, k, v, self._bias(visible, batch), self.dropout if self.training else 0.0
        )
        x = _from_windows(self.proj(y.transpose(1, 2).flatten(2)), self.window, rows.padded, columns.padded)
        if moved:
            x = torch.roll(x, (rows.shift, columns.shift), (1, 2))
        return x[:, : rows.size, : columns.size]

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def _bias(self, visible: Tensor | None, batch: int) -> Tensor:
        """What is added to the scores, [1 or B * windows, heads, window^2, window^2]."""
        places = self.window**2
        bias = self.relative_position_bias_table[self.index].view(1, places, places, self.heads).permute(0, 3, 1, 2)
        if visible is None:
            return bias.contiguous()
        bias = bias.masked_fill(~visible.unsqueeze(1), -torch.inf)
        return bias.unsqueeze(0).expand(batch, -1, -1, -1, -1).flatten(0, 1)


class _Place(NamedTuple):
    """Where a block stands: layer of layers is its number in the whole model, side that of its map at image_size."""

    block: int
    layer: int
    layers: int
    features: int
    side: int


class _Block(nn.Module):
    def __init__(self, o: SwinOptions, place: _Place, **kind: Any) -> None:
        super().__init__()
        self.dropout, self.drop = o.dropout, drop_probability(o.stochastic_depth, place.layer, place.layers)
        self.norm1 = nn.LayerNorm(place.features, **kind)
        self.attn = _WindowAttention(o, place.features, place.block % 2 == 1, **kind)
        self.mixer = MapMixer(self, o.place(place.features, place.side, place.side, place.layer), **kind)
        self.norm2 = nn.LayerNorm(place.features, **kind)
        self.mlp = Mlp(place.features, o.feedforward_ratio * place.features, o.dropout, **kind)

    def forward(self, x: Tensor, windows: list[Windows] | None) -> Tensor:
        normed = self.norm1(x)
        branch = self.attn(normed)
        if self.mixer.active:
            mixed = self.mixer(branch.permute(0, 3, 1, 2), windows, normed.permute(0, 3, 1, 2))
            branch = mixed.permute(0, 2, 3, 1)
        branch = F.dropout(branch, self.dropout, self.training)
        x = x + drop_path(branch, self.drop, self.training)
        return x + drop_path(self.mlp(self.norm2(x)), self.drop, self.training)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward


class _Merging(nn.Module):
    """[B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 C]"""

    def __init__(self, features: int, **kind: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * features, **kind)
        self.reduction = nn.Linear(4 * features, 2 * features, bias=False, **kind)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        quarters = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        merged: Tensor = self.reduction(self.norm(torch.cat(quarters, 3)))
        return merged

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward


class _Stage(nn.Module):
    def __init__(self, o: SwinOptions, place: _Place, depth: int, last: bool, **kind: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            _Block(o, place._replace(block=i, layer=place.layer + i), **kind) for i in range(depth)
        )
        self.downsample = None if last else _Merging(place.features, **kind)

    def forward(self, x: Tensor, windows: list[Windows] | None) -> Tensor:
        for block in self.blocks:
            x = block(x, windows)
        return x if self.downsample is None else self.downsample(x)


class _PatchEmbed(nn.Module):
    def __init__(self, o: SwinOptions, **kind: Any) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, o.features, o.patch, o.patch, **kind)
        self.norm = nn.LayerNorm(o.features, **kind)


class Swin(ImageClassifier):
    """x <- x + Mix(WindowAttn(LN x)), x <- x + MLP(LN x); between stages the map is halved.

    Any image size: images are padded to whole patches, maps to whole windows and to even sides; no pixel
    sees padding, so each pixel sees exactly those of its window that exist. The mixer works on the whole map: after the
    windows are put back, un-shifted and un-padded. Tensor names are Microsoft's, and those of the C++ model.
    """

    def __init__(
        self,
        options: SwinOptions | None = None,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = o = options or SwinOptions()
        o.check()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        depths = parse_depths(_WHO, o.depths)
        self.patch_embed = _PatchEmbed(o, **kind)
        self.pos_drop = nn.Dropout(o.dropout)
        self.layers = nn.ModuleList()
        place = _Place(0, 0, sum(depths), o.features, _up_to_multiple(o.image_size, o.patch) // o.patch)
        for stage, depth in enumerate(depths):
            last = stage + 1 == len(depths)
            self.layers.append(_Stage(o, place, depth, last, **kind))
            if not last:
                place = _Place(0, place.layer + depth, place.layers, 2 * place.features, (place.side + 1) // 2)
        self.norm = nn.LayerNorm(place.features, **kind)
        self.head = nn.Linear(place.features, o.classes, **kind)
        self.reset_parameters()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], who: str = _WHO) -> Swin:
        """The model of these options, by name, as a checkpoint keeps them; new weights."""
        return cls(SwinOptions.from_dict(options, who))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Linear weights and relative position tables N(0, 0.02), biases 0, norms 1 and 0, convolutions by torch's own
        rule, mixers by theirs: initial_sigma holds."""
        initialise_transformer(self)
        for module in self.modules():
            if isinstance(module, _WindowAttention):
                module.relative_position_bias_table.normal_(0, DEVIATION)
            elif isinstance(module, _Block):
                module.mixer.reset_parameters()

    def _run(self, images: Tensor, windows: list[Windows] | None) -> Tensor:
        check_images(_WHO, images)
        patch = self.options.patch
        down, right = (_up_to_multiple(size, patch) - size for size in images.shape[2:])
        if down or right:
            images = F.pad(images, (0, right, 0, down))
        x = self.pos_drop(self.patch_embed.norm(self.patch_embed.proj(images).permute(0, 2, 3, 1)))
        for stage in self.layers:
            x = stage(x, windows)
        logits: Tensor = self.head(self.norm(x).mean((1, 2)))
        return logits


def _named() -> dict[str, SwinOptions]:
    sizes: dict[str, dict[str, Any]] = {
        "swin-tiny": {"stochastic_depth": 0.2},
        "swin-small": {"depths": "2,2,18,2", "stochastic_depth": 0.3},
        "swin-base": {"depths": "2,2,18,2", "features": 128, "stochastic_depth": 0.5},
    }
    return {
        prefix + name: SwinOptions(mixer=mixer, **options)
        for name, options in sizes.items()
        for prefix, mixer in PREFIXES.items()
    }


#: The named models: swin-{tiny,small,base}, each also as cp-... with ContextPool and dw-... with a depthwise
#: convolution in its place.
SWINS = _named()
