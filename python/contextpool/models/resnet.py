"""ResNet (He et al. 2016), for CIFAR (shortcuts without parameters, option A) and for ImageNet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn._options import check_word
from ..nn.context_pool import Windows
from ._vision import (
    PREFIXES,
    ImageClassifier,
    MapMixer,
    VisionOptions,
    check_images,
    check_numbers,
    drop_path,
    drop_probability,
    parse_depths,
)

_WHO = "ResNet"
_EXPANSION = 4  # of a bottleneck's outputs over its inside


@dataclasses.dataclass
class ResNetOptions(VisionOptions):
    """Every option of the model."""

    classes: int = 10
    image_size: int = 32
    kind: str = "cifar"
    block: str = "basic"
    depths: str = "7,7,7"
    features: int = 16
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    zero_last_norm: bool = False
    mixer_stages: int = 3
    _: dataclasses.KW_ONLY
    pool_stride: int = 1
    pool_ratio: float = 0.05
    pool_initial_sigma: float = 0.5
    pool_hidden: int = 20

    def check(self) -> None:
        check_numbers(_WHO, self, ("classes", "image_size", "features"), ("dropout", "stochastic_depth"))
        check_word(_WHO, "kind", self.kind, ("cifar", "imagenet"))
        check_word(_WHO, "block", self.block, ("basic", "bottleneck"))
        if self.kind == "cifar" and self.block != "basic":
            raise ValueError(f"{_WHO}: the CIFAR kind has basic blocks, not {self.block}")
        if self.kind == "cifar" and self.features % 2:
            raise ValueError(
                f"{_WHO}: the CIFAR kind's shortcuts need an even number of features, but there are {self.features}"
            )
        stages = len(parse_depths(_WHO, self.depths))
        if not 0 <= self.mixer_stages <= stages:
            raise ValueError(
                f"{_WHO}: mixer_stages must be from 0 to the {stages} stages, but is {self.mixer_stages}"
            )
        if self.pool_stride not in (1, 2):
            raise ValueError(f"{_WHO}: pool_stride must be 1 or 2, but is {self.pool_stride}")
        if self.pool_stride == 2 and self.mixer == "none":
            raise ValueError(f"{_WHO}: pool_stride 2 needs a mixer that takes the convolution's place")

    def stages(self) -> list[_Stage]:
        depths = parse_depths(_WHO, self.depths)
        side = self.image_size if self.kind == "cifar" else _half(_half(self.image_size))
        inputs, inside, first, halved = self.features, self.features, 0, False
        stages = []
        for number, depth in enumerate(depths):
            stride = 2 if number > 0 and not halved else 1
            side = _half(side) if stride == 2 else side
            features = inside * (_EXPANSION if self.block == "bottleneck" else 1)
            mixes = self.mixer != "none" and number < self.mixer_stages
            end = 0 if not mixes else 1 if number + 1 == len(depths) else self.pool_stride
            stages.append(_Stage(number, depth, first, sum(depths), inputs, inside, features, stride, side, end))
            halved = end == 2
            side = _half(side) if halved else side
            inputs, inside, first = features, 2 * inside, first + depth
        return stages


def _half(size: int) -> int:
    return (size + 1) // 2


class _Stage(NamedTuple):
    """A stage, and the map [features, side, side] (at image_size) that it makes of [inputs, ...]."""

    number: int
    depth: int
    first_block: int  # of blocks: its number in the whole model
    blocks: int
    inputs: int
    inside: int
    features: int
    stride: int  # of its first block
    side: int
    end_stride: int  # of the mixer at its end; 0: there is none


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, **kind: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False, **kind)


class _Block(nn.Module):
    """The i-th of its stage."""

    def __init__(self, o: ResNetOptions, stage: _Stage, i: int, **kind: Any) -> None:
        super().__init__()
        inputs = stage.features if i else stage.inputs
        self.stride = 1 if i else stage.stride
        self.new_features = stage.features - inputs
        self.drop = drop_probability(o.stochastic_depth, stage.first_block + i, stage.blocks)
        sizes: tuple[tuple[int, int, int, int], ...]
        if o.block == "bottleneck":
            sizes = ((inputs, stage.inside, 1, 1), (stage.inside, stage.inside, 3, self.stride),
                     (stage.inside, stage.features, 1, 1))  # fmt: skip
        else:
            sizes = ((inputs, stage.features, 3, self.stride), (stage.features, stage.features, 3, 1))
        self.convolutions = len(sizes)
        for number, (before, after, kernel, stride) in enumerate(sizes, 1):
            self.add_module(f"conv{number}", _convolution(before, after, kernel, stride, **kind))
            self.add_module(f"bn{number}", nn.BatchNorm2d(after, **kind))
        self.downsample = None
        if o.kind == "imagenet" and (self.stride == 2 or self.new_features):
            self.downsample = nn.Sequential(
                _convolution(inputs, stage.features, 1, self.stride, **kind), nn.BatchNorm2d(stage.features, **kind)
            )

    def forward(self, x: Tensor) -> Tensor:
        branch = x
        for i in range(1, self.convolutions + 1):
            branch = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(branch))
            if i < self.convolutions:
                branch = F.relu(branch, inplace=True)
        return F.relu(self._shortcut(x) + drop_path(branch, self.drop, self.training), inplace=True)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            near: Tensor = self.downsample(x)
            return near
        near = x[:, :, :: self.stride, :: self.stride] if self.stride > 1 else x
        if not self.new_features:
            return near
        before = self.new_features // 2
        return F.pad(near, (0, 0, 0, 0, before, self.new_features - before))


class _StageEnd(nn.Module):
    """What stands at the end of a stage."""

    def __init__(self, o: ResNetOptions, stage: _Stage, **kind: Any) -> None:
        super().__init__()
        place = o.place(stage.features, stage.side, stage.side, stage.number)
        if stage.end_stride == 0 or (o.mixer == "average" and stage.end_stride == 1):  # there is nothing to halve
            place = dataclasses.replace(place, kind="none")
        self.mixer = MapMixer(self, place, stage.end_stride, **kind)

    def forward(self, x: Tensor, windows: list[Windows] | None) -> Tensor:
        return self.mixer(x, windows)


class ResNet(ImageClassifier):
    """x <- relu(shortcut(x) + BN(conv(relu(BN(conv(x)))))); at the end of a stage x <- Mix(x); logits = fc(mean(x)).

    The mixer stands at the ends of the first ``mixer_stages`` stages, with stride 1; with pool_stride 2 it halves the
    map in place of the next stage's strided convolution. Tensor names are torchvision's and timm's, and those of the
    C++ model; the mixers are ``ends.S.*``.
    """

    def __init__(
        self,
        options: ResNetOptions | None = None,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = o = options or ResNetOptions()
        o.check()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        kernel, stride = (3, 1) if o.kind == "cifar" else (7, 2)
        self.conv1 = _convolution(3, o.features, kernel, stride, **kind)
        self.bn1 = nn.BatchNorm2d(o.features, **kind)
        self.ends = nn.ModuleList()
        self._stages = []
        stages = o.stages()
        for stage in stages:
            blocks = nn.ModuleList(_Block(o, stage, i, **kind) for i in range(stage.depth))
            name = f"layer{stage.number + 1}"
            self.add_module(name, blocks)
            self._stages.append(name)
            self.ends.append(_StageEnd(o, stage, **kind))
        self.drop = nn.Dropout(o.dropout)
        self.fc = nn.Linear(stages[-1].features, o.classes, **kind)
        self.reset_parameters()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], who: str = _WHO) -> ResNet:
        """The model of these options, by name, as a checkpoint keeps them; new weights."""
        return cls(ResNetOptions.from_dict(options, who))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Convolutions by Kaiming's rule (normal, for ReLU; over the outputs for ImageNet as torchvision does, over the
        inputs for CIFAR, where the last layer gets it too), norms 1 and 0, mixers by their own rule: initial_sigma
        holds."""
        cifar = self.options.kind == "cifar"
        mode: Literal["fan_in", "fan_out"] = "fan_in" if cifar else "fan_out"
        for name, module in self.named_modules():
            if name.startswith("ends."):
                if isinstance(module, _StageEnd):
                    module.mixer.reset_parameters()
            elif isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d | nn.Linear):
                module.reset_parameters()
        if cifar:
            nn.init.kaiming_normal_(self.fc.weight, nonlinearity="relu")
            nn.init.zeros_(self.fc.bias)
        if self.options.zero_last_norm:
            for module in self.modules():
                if isinstance(module, _Block):
                    nn.init.zeros_(module.get_parameter(f"bn{module.convolutions}.weight"))

    def _run(self, images: Tensor, windows: list[Windows] | None) -> Tensor:
        check_images(_WHO, images)
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        if self.options.kind == "imagenet":
            x = F.max_pool2d(x, 3, 2, 1)
        for name, end in zip(self._stages, self.ends, strict=True):
            blocks = self.get_submodule(name)
            assert isinstance(blocks, nn.ModuleList)
            for block in blocks:
                x = block(x)
            x = end(x, windows)
        logits: Tensor = self.fc(self.drop(x.mean((2, 3))))
        return logits


def _named() -> dict[str, ResNetOptions]:
    depths = {"20": "3,3,3", "32": "5,5,5", "44": "7,7,7", "46": "7,8,7", "56": "9,9,9"}
    sizes: dict[str, dict[str, Any]] = {f"resnet-{name}": {"depths": text} for name, text in depths.items()}
    for name, text in {"18": "2,2,2,2", "50": "3,4,6,3", "101": "3,4,23,3"}.items():
        sizes[f"resnet-{name}"] = {
            "classes": 1000, "image_size": 224, "kind": "imagenet", "depths": text, "features": 64, "pool_hidden": 16,
            "block": "basic" if name == "18" else "bottleneck",
        }  # fmt: skip
    return {
        prefix + name: ResNetOptions(mixer=mixer, **options)
        for name, options in sizes.items()
        for prefix, mixer in PREFIXES.items()
    }


#: The named models: resnet-{20,32,44,46,56} for CIFAR and resnet-{18,50,101}, each also as cp-... with ContextPool and
#: dw-... with a depthwise convolution in its place.
RESNETS = _named()
