"""What the families of vision models share: options, forward, the mixer of a place, stochastic depth, checks.

Images are floating ``[B, 3, H, W]``, normalised, in any memory format; logits ``[B, classes]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn._option_table import PoolOptions
from ..nn._options import check_word
from ..nn.context_pool import ContextPool2d, Windows
from ..nn.mixer import MixerOptions, make_mixer
from ._options import check_options

if TYPE_CHECKING:
    from typing_extensions import Self

DEVIATION = 0.02  # of the initial weights of transformers
PREFIXES = {"": "none", "cp-": "context_pool", "dw-": "depthwise"}  # of names: the mixer
_TAPS = 3  # of the depthwise control, on maps and on rows of patches
_WITHOUT_DECAY = ("cls_token", "dist_token", "pos_embed", "relative_position_bias_table")


class LogitsAndWindows(NamedTuple):
    """What a model says, and what each ContextPool predicted, in the order of the layers, on its map."""

    logits: Tensor
    windows: list[Windows]


@dataclasses.dataclass
class VisionOptions(PoolOptions):
    """The options of mixers, which all families have; those named ``pool_*`` are ContextPool's."""

    mixer: str = "none"
    mixer_residual: str = ""
    mixer_taps: int = 0
    mixer_rank: int = 15
    mixer_heads: int = 0
    _: dataclasses.KW_ONLY
    pool_ratio: float = 0.1
    pool_initial_sigma: float = 1.0
    pool_hidden: int = 24

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], who: str) -> Self:
        """Options by name; those missing at their default. ``who`` opens the messages of errors."""
        check_options(cls, options, who)
        return cls(**options)

    def place(self, features: int, height: int, width: int, layer: int, *, row: bool = False) -> MixerOptions:
        """Of the mixer of a place whose map is features x height x width at the model's usual image size."""
        pool = self.pool() | {"layer": layer, "usual_length": max(1, height * width if row else (height + width) // 2)}
        taps = self.mixer_taps or (_TAPS if row and self.mixer == "depthwise" else 0)
        return MixerOptions(
            self.mixer,
            features,
            dims=1 if row else 2,
            taps=taps,
            residual=self.mixer_residual,
            rank=self.mixer_rank,
            heads=self.mixer_heads,
            pool=pool,
        )


def no_decay(name: str, parameter: Tensor) -> bool:
    """Whether training leaves a parameter without weight decay: those of one dimension (biases, norms, scales), the
    class and distillation tokens, position tables and Swin's relative position tables."""
    return parameter.dim() <= 1 or name.rpartition(".")[2] in _WITHOUT_DECAY


class ImageClassifier(nn.Module):
    """What every vision model is, for callers that do not ask which."""

    def forward(self, images: Tensor) -> Tensor:
        """images [B, 3, H, W] to logits [B, classes]."""
        return self._run(images, None)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def forward_with_windows(self, images: Tensor) -> LogitsAndWindows:
        """The same, and what each ContextPool predicted, on its map; an empty list where there is none."""
        windows: list[Windows] = []
        return LogitsAndWindows(self._run(images, windows), windows)

    def _run(self, images: Tensor, windows: list[Windows] | None) -> Tensor:
        """windows: where what each ContextPool predicted is added; None: nowhere."""
        raise NotImplementedError


class MapMixer:
    """What stands in one place of a model and mixes a map. Its modules are the owner's, registered by their kind:
    ``context_pool.*``, ``depthwise.{weight,bias}``, ...

    Of stride 1 any mixer of :func:`contextpool.nn.make_mixer`; of stride 2 "context_pool", "depthwise", or "average",
    the mean of 2 x 2 pixels.
    """

    def __init__(self, owner: nn.Module, options: MixerOptions, stride: int = 1, **kind: Any) -> None:
        self.owner, self.options, self.stride = owner, options, stride
        o = options
        if o.kind == "none":
            return
        if stride == 1:
            owner.add_module(o.kind, make_mixer(o, **kind))
            return
        check_word("a mixer with stride 2", "kind", o.kind, ("context_pool", "depthwise", "average"))
        if o.residual not in ("", "none"):
            raise ValueError(f"a mixer with stride 2 has no residual, but residual is {o.residual}")
        if o.kind == "context_pool":
            owner.add_module(o.kind, ContextPool2d(o.features, stride=stride, **o.pool, **kind))
        elif o.kind == "depthwise":
            taps = o.taps or _TAPS
            if taps < 1 or taps % 2 == 0:
                raise ValueError(f"Depthwise: taps must be odd, to have a middle, but are {taps}")
            owner.add_module(
                o.kind, nn.Conv2d(o.features, o.features, taps, stride, taps // 2, groups=o.features, **kind)
            )

    @property
    def active(self) -> bool:
        return self.options.kind != "none"

    def __call__(self, x: Tensor, windows: list[Windows] | None = None, context: Tensor | None = None) -> Tensor:
        """x [B, C, H, W] to [B, C, Ho, Wo] with Ho = ceil(H / stride). windows: where a ContextPool's are added."""
        if not self.active:
            return x
        if self.options.kind == "average":
            return F.avg_pool2d(x, self.stride, ceil_mode=True)
        mixer: Any = self.owner.get_submodule(self.options.kind)
        if isinstance(mixer, nn.Conv2d):
            strided: Tensor = mixer(x)
            return strided
        row = self.options.dims == 1
        given = _to_row(x) if row else x
        context = _to_row(context) if row and context is not None else context
        if windows is None or self.options.kind != "context_pool":
            y: Tensor = mixer(given, context=context)
        else:
            y, seen = mixer.forward_with_windows(given, context=context)
            if row:
                seen = Windows(*(None if t is None else torch.unflatten(t, -1, x.shape[2:]) for t in seen))
            windows.append(seen)
        return torch.unflatten(y.transpose(1, 2), 2, x.shape[2:]) if row else y

    def reset_parameters(self) -> None:
        """Draws its parameters anew by the mixer's own rule: initial_sigma holds."""
        if not self.active or self.options.kind == "average":
            return
        mixer: Any = self.owner.get_submodule(self.options.kind)
        mixer.reset_parameters()
        if isinstance(mixer, nn.Conv2d) and mixer.bias is not None:
            nn.init.zeros_(mixer.bias)


def _to_row(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


class Mlp(nn.Module):
    """fc2(drop(gelu(fc1(x)))), exact gelu; then drop."""

    def __init__(self, features: int, hidden: int, dropout: float, **kind: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, hidden, **kind)
        self.fc2 = nn.Linear(hidden, features, **kind)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.gelu(self.fc1(x)), self.dropout, self.training)
        return F.dropout(self.fc2(hidden), self.dropout, self.training)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward


def drop_path(branch: Tensor, probability: float, training: bool) -> Tensor:
    """Stochastic depth: in training the branch of an image is 0 with this probability, and otherwise divided by
    1 - probability, so that its mean stays."""
    if not training or probability == 0:
        return branch
    kept = 1 - probability
    mask = branch.new_empty([branch.shape[0]] + [1] * (branch.dim() - 1)).bernoulli_(kept)
    return branch * mask.div_(kept)


def drop_probability(last: float, i: int, n: int) -> float:
    """Of branch i of n: grows from 0 in the first to ``last`` in the last."""
    return last * i / (n - 1) if n > 1 else 0.0


@torch.no_grad()
def initialise_transformer(model: nn.Module) -> None:
    """Linear weights N(0, 0.02), their biases 0, norms 1 and 0, convolutions drawn by torch's own rule. Mixers draw
    theirs themselves, afterwards."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, DEVIATION)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.LayerNorm | nn.Conv2d):
            module.reset_parameters()


def check_images(who: str, images: Tensor) -> None:
    if images.dim() != 4 or images.shape[1] != 3 or images.shape[2] < 1 or images.shape[3] < 1:
        hint = ""
        if images.dim() == 3:
            hint = "; images.unsqueeze(0) makes a batch of one"
        elif images.dim() == 4 and images.shape[3] == 3:
            hint = "; images.permute(0, 3, 1, 2) puts the colours second"
        raise ValueError(f"{who}: images must be [batch, 3, height, width], but are {list(images.shape)}{hint}")
    if not images.is_floating_point():
        raise ValueError(f"{who}: images must be floating point and normalised, but are {images.dtype}")


def check_numbers(who: str, options: VisionOptions, positive: tuple[str, ...], shares: tuple[str, ...]) -> None:
    for name in positive:
        if getattr(options, name) < 1:
            raise ValueError(f"{who}: {name} must be positive, but is {getattr(options, name)}")
    for name in shares:
        if not 0 <= getattr(options, name) < 1:
            raise ValueError(f"{who}: {name} must be in [0, 1), but is {getattr(options, name)}")


def parse_depths(who: str, text: str, most: int = 6) -> list[int]:
    parts = text.split(",")
    if len(parts) > most or not all(p.isascii() and p.isdigit() and 1 <= int(p) <= 1000 for p in parts):
        raise ValueError(
            f"{who}: depths must be the numbers of blocks of 1 or more stages, from 1 to 1000, as in "
            f'"2,2,6,2", but are "{text}"'
        )
    return [int(p) for p in parts]
