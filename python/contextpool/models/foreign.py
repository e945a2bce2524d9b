"""Weights that others trained, by their names: timm's ViT, DeiT, Swin and ResNet, Microsoft's Swin, DeiT's own files,
torchvision's ViT, Swin and ResNet, and ResNets for CIFAR with option-A shortcuts."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn.mixer import mixer_kinds
from .resnet import ResNet
from .swin import Swin
from .vision_transformer import VisionTransformer

_IGNORED = ("attn_mask", "relative_position_index")  # what follows from the sizes
_SHOWN = 4  # names in a message


@dataclasses.dataclass
class ForeignReport:
    """What was done."""

    #: Whose names they are: timm, Microsoft, torchvision, ...
    source: str = ""
    #: Tables that had another size.
    resized: list[str] = dataclasses.field(default_factory=list)
    #: The model's own that were not loaded: mixers and a dropped head.
    kept: list[str] = dataclasses.field(default_factory=list)


class _Table(NamedTuple):
    """The names that one library gives."""

    source: str
    mark: str  # how a name begins that only such files have; of the last table: empty
    rules: Mapping[str, str | Callable[[re.Match[str]], str]]  # the first that fits is applied,
    parts: Mapping[str, str] = {}  # then the first of these that is found inside the name


_MLP = {".mlp.0.": ".mlp.fc1.", ".mlp.3.": ".mlp.fc2."}


def _earlier(match: re.Match[str]) -> str:
    return f"layers.{int(match[1]) - 1}.downsample."


_VISION_TRANSFORMER = (
    _Table(
        "torchvision",
        "encoder.layers.encoder_layer_0.",
        {
            r"class_token": "cls_token",
            r"conv_proj\.": "patch_embed.proj.",
            r"encoder\.pos_embedding": "pos_embed",
            r"encoder\.layers\.encoder_layer_(\d+)\.": r"blocks.\1.",
            r"encoder\.ln\.": "norm.",
            r"heads\.head\.": "head.",
        },
        {
            ".ln_1.": ".norm1.",
            ".ln_2.": ".norm2.",
            ".self_attention.in_proj_": ".attn.qkv.",
            ".self_attention.out_proj.": ".attn.proj.",
            **_MLP,
            ".mlp.linear_1.": ".mlp.fc1.",
            ".mlp.linear_2.": ".mlp.fc2.",
        },
    ),
    _Table("timm", "", {}),
)
_SWIN = (
    _Table(
        "torchvision",
        "features.0.0.",
        {
            r"features\.0\.0\.": "patch_embed.proj.",
            r"features\.0\.2\.": "patch_embed.norm.",
            r"features\.([1357])\.": lambda match: f"layers.{int(match[1]) // 2}.blocks.",
            r"features\.([246])\.": lambda match: f"layers.{int(match[1]) // 2 - 1}.downsample.",
        },
        _MLP,
    ),
    _Table("Microsoft", "layers.0.downsample.", {}),
    _Table("timm", "", {r"layers\.(\d+)\.downsample\.": _earlier, r"head\.fc\.": "head."}),
)
_RESNET = (
    _Table("a ResNet for CIFAR", "linear.", {r"linear\.": "fc."}),
    _Table("timm or torchvision", "", {}),
)


def _renamed(table: _Table, name: str) -> str:
    for pattern, to in table.rules.items():
        if re.match(pattern, name):
            name = re.sub(pattern, to, name, count=1)
            break
    for part, to_part in table.parts.items():
        if part in name:
            return name.replace(part, to_part, 1)
    return name


def _rename(tables: tuple[_Table, ...], given: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    plain = {name.removeprefix("module."): tensor for name, tensor in given.items()}  # of DataParallel
    table = next(t for t in tables if not t.mark or any(name.startswith(t.mark) for name in plain))
    return table.source, {
        _renamed(table, name): tensor for name, tensor in plain.items() if not name.endswith(_IGNORED)
    }


def _side_of(numbers: int) -> int:
    """The side of a square of so many numbers, or 0."""
    side = math.isqrt(max(numbers, 0))
    return side if side * side == numbers else 0


def _resized_positions(table: Tensor, wanted: Tensor, prefix: int) -> Tensor:
    """pos_embed [1, prefix + old * old, D] for another grid. Unchanged where it is no such table."""
    if table.dim() != 3 or table.shape[0] != 1 or table.shape[2] != wanted.shape[2]:
        return table
    old, side = _side_of(table.shape[1] - prefix), _side_of(wanted.shape[1] - prefix)
    if not old or not side:
        return table
    grid = table[:, prefix:].float().transpose(1, 2).reshape(1, -1, old, old)
    resized = F.interpolate(grid, (side, side), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat((table[:, :prefix], resized.flatten(2).transpose(1, 2).to(table.dtype)), 1)


def _resized_relative(table: Tensor, wanted: Tensor) -> Tensor:
    """relative_position_bias_table [old * old, heads] for another window."""
    if table.dim() != 2 or table.shape[1] != wanted.shape[1]:
        return table
    old, side = _side_of(table.shape[0]), _side_of(wanted.shape[0])
    if not old or not side:
        return table
    grid = table.float().t().reshape(1, -1, old, old)
    resized = F.interpolate(grid, (side, side), mode="bicubic", align_corners=False)
    return resized.reshape(table.shape[1], -1).t().to(table.dtype)


def _resized(model: nn.Module, name: str, given: Tensor, wanted: Tensor) -> Tensor:
    if isinstance(model, VisionTransformer) and name == "pos_embed":
        return _resized_positions(given, wanted, model.prefix_tokens)
    if isinstance(model, Swin) and name.endswith("relative_position_bias_table"):
        return _resized_relative(given, wanted)
    return given


def _list(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"; {what} {', '.join(names[:_SHOWN])}{more}"


def load_foreign(
    model: VisionTransformer | Swin | ResNet,
    weights: Mapping[str, Tensor] | str | os.PathLike[str],
    *,
    drop_head: bool = False,
    who: str | None = None,
) -> ForeignReport:
    """Copies the tensors into the model, converting dtypes and devices. Position tables of another image size are
    resized.

    The parameters of mixers stay as they are where a file does not have them, as those of others do not; a file of ours
    for another image size loads whole. Unless everything else is there and of the right shape nothing is changed, and
    ValueError says what is missing, unexpected, of another shape or not finite, and where the classes differ.

    Args:
        weights: tensors by name (a state_dict), or the path of a safetensors file.
        drop_head: leave the classifier of the model as it is, for other classes than the file's.
        who: opens the messages; the file's name unless given.
    """
    if not isinstance(weights, Mapping):
        from safetensors.torch import load_file

        who = who or str(weights)
        weights = load_file(weights)
    who = who or "weights"
    tables: tuple[_Table, ...]
    heads: tuple[str, ...]
    if isinstance(model, VisionTransformer):
        family, tables, heads = "vision transformer", _VISION_TRANSFORMER, ("head.", "head_dist.")
    elif isinstance(model, Swin):
        family, tables, heads = "Swin", _SWIN, ("head.",)
    elif isinstance(model, ResNet):
        family, tables, heads = "ResNet", _RESNET, ("fc.",)
    else:
        raise ValueError(f"{who}: the weights of others are for vision models, but this is a {type(model).__name__}")
    source, tensors = _rename(tables, weights)
    report = ForeignReport(source)
    if drop_head:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(heads)}
    mixers = tuple(f".{kind}." for kind in mixer_kinds())
    copies: list[tuple[Tensor, Tensor]] = []
    missing: list[str] = []
    shapes: list[str] = []
    not_finite: list[str] = []
    for name, wanted in model.state_dict(keep_vars=True).items():
        if name not in tensors:
            may = any(mixer in name for mixer in mixers) or (drop_head and name.startswith(heads))
            (report.kept if may or name.endswith("num_batches_tracked") else missing).append(name)
            continue
        given = tensors.pop(name)
        if given.shape != wanted.shape:
            resized = _resized(model, name, given, wanted)
            if resized is not given:
                report.resized.append(name)
            given = resized
        if name.startswith(heads) and given.dim() > 0 and given.shape[0] != wanted.shape[0]:
            raise ValueError(
                f"{who}: its {name} is for {given.shape[0]} classes, but the model has {wanted.shape[0]}; build the "
                "model with as many classes, or drop the file's head"
            )
        if given.shape != wanted.shape:
            shapes.append(f"{name} is {list(given.shape)}, not {list(wanted.shape)}")
        if not given.isfinite().all():
            not_finite.append(name)
        copies.append((wanted, given))
    wrong = _list("missing", missing) + _list("unexpected", sorted(tensors)) + _list("of another shape:", shapes)
    if wrong:
        raise ValueError(f"{who}: not the weights of this {family} (names of {source}): {wrong[2:]}")
    if spoiled := _list("NaN or infinity in", not_finite):
        raise ValueError(f"{who}: there is {spoiled[2:]}; no picture would be classified")
    with torch.no_grad():
        for target, given in copies:
            target.copy_(given)
    return report
