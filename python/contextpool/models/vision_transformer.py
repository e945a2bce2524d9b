"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021): a pre-norm transformer over the patches of an image."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn._options import check_word
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
)

_WHO = "vision transformer"
_EPSILON = 1e-6  # of its layer norms


@dataclasses.dataclass
class VisionTransformerOptions(VisionOptions):
    """Every option of the model."""

    classes: int = 1000
    image_size: int = 224
    patch: int = 16
    layers: int = 12
    features: int = 768
    heads: int = 12
    feedforward: int = 3072
    distilled: bool = False
    readout: str = "token"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    placement: str = "after_attention"
    windows: str = "grid"

    def check(self) -> None:
        sizes = ("classes", "image_size", "patch", "layers", "features", "heads", "feedforward")
        check_numbers(_WHO, self, sizes, ("dropout", "attention_dropout", "stochastic_depth"))
        if self.image_size % self.patch:
            raise ValueError(
                f"{_WHO}: image_size must be a multiple of the patch, {self.patch}, but is {self.image_size}"
            )
        if self.features % self.heads:
            raise ValueError(f"{_WHO}: heads must divide the {self.features} features, but are {self.heads}")
        check_word(_WHO, "placement", self.placement, ("after_attention", "after_block", "before_attention"))
        check_word(_WHO, "readout", self.readout, ("token", "mean"))
        if self.distilled and self.readout != "token":
            raise ValueError(f"{_WHO}: a distilled model reads its two tokens, not the mean")
        check_word(_WHO, "windows", self.windows, ("grid", "row"))


class _Attention(nn.Module):
    def __init__(self, o: VisionTransformerOptions, **kind: Any) -> None:
        super().__init__()
        self.heads, self.dropout = o.heads, o.attention_dropout
        self.qkv = nn.Linear(o.features, 3 * o.features, **kind)
        self.proj = nn.Linear(o.features, o.features, **kind)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward


class _Block(nn.Module):
    def __init__(self, o: VisionTransformerOptions, layer: int, **kind: Any) -> None:
        super().__init__()
        side = o.image_size // o.patch
        self.placement, self.dropout = o.placement, o.dropout
        self.drop = drop_probability(o.stochastic_depth, layer, o.layers)
        self.norm1 = nn.LayerNorm(o.features, eps=_EPSILON, **kind)
        self.attn = _Attention(o, **kind)
        place = o.place(o.features, side, side, layer, row=o.windows == "row")
        self.mixer = MapMixer(self, place, **kind)
        self.norm2 = nn.LayerNorm(o.features, eps=_EPSILON, **kind)
        self.mlp = Mlp(o.features, o.feedforward, o.dropout, **kind)

    def forward(self, x: Tensor, prefix: int, side: int, windows: list[Windows] | None) -> Tensor:
        normed = self.norm1(x)

        def map_of(tokens: Tensor) -> Tensor:
            return torch.unflatten(tokens[:, prefix:].transpose(1, 2), 2, (side, side))

        def mix(placement: str, tokens: Tensor) -> Tensor:
            if not self.mixer.active or self.placement != placement:
                return tokens
            # One copy, which predictor and pooling would both make of a map with gaps.
            patches = map_of(tokens).contiguous(memory_format=torch.channels_last)
            mixed = self.mixer(patches, windows, map_of(normed))
            return torch.cat((tokens[:, :prefix], mixed.flatten(2).transpose(1, 2)), 1)

        branch = mix("after_attention", self.attn(mix("before_attention", normed)))
        branch = F.dropout(branch, self.dropout, self.training)
        x = x + drop_path(branch, self.drop, self.training)
        x = x + drop_path(self.mlp(self.norm2(x)), self.drop, self.training)
        return mix("after_block", x)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward


class _PatchEmbed(nn.Module):
    def __init__(self, o: VisionTransformerOptions, **kind: Any) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, o.features, o.patch, o.patch, **kind)


class VisionTransformer(ImageClassifier):
    """x_0 = [cls; dist; patches] + pos, x <- x + Mix(Attn(LN x)), x <- x + MLP(LN x), logits = head(LN(x)_cls).

    The mixer works on the grid of patches. Class and distillation tokens bypass it: they are neither source nor target.
    So the last block's mixer does not affect the logits where the head reads the class token; with readout "mean" the
    head reads mean(LN(x)_patches), and it does. Tensor names are timm's, and those of the C++ model.

    Images are [B, 3, image_size, image_size]. The logits of a distilled model are the mean of its two heads; in
    training mode it gives both, [B, 2, classes]: the class token's, then the distillation token's.
    """

    def __init__(
        self,
        options: VisionTransformerOptions | None = None,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = o = options or VisionTransformerOptions()
        o.check()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.prefix_tokens = 2 if o.distilled else 1
        self.grid = o.image_size // o.patch
        self.cls_token = nn.Parameter(torch.zeros(1, 1, o.features, **kind))
        self.dist_token = nn.Parameter(torch.zeros(1, 1, o.features, **kind)) if o.distilled else None
        self.pos_embed = nn.Parameter(torch.zeros(1, self.prefix_tokens + self.grid**2, o.features, **kind))
        self.patch_embed = _PatchEmbed(o, **kind)
        self.pos_drop = nn.Dropout(o.dropout)
        self.blocks = nn.ModuleList(_Block(o, layer, **kind) for layer in range(o.layers))
        self.norm = nn.LayerNorm(o.features, eps=_EPSILON, **kind)
        self.head = nn.Linear(o.features, o.classes, **kind)
        self.head_dist = nn.Linear(o.features, o.classes, **kind) if o.distilled else None
        self.reset_parameters()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], who: str = _WHO) -> VisionTransformer:
        """The model of these options, by name, as a checkpoint keeps them; new weights."""
        return cls(VisionTransformerOptions.from_dict(options, who))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Linear weights, tokens and positions N(0, 0.02) (torch's trunc_normal_ cuts at +-2, which is 100 deviations
        away), biases 0, norms 1 and 0, convolutions by torch's own rule, mixers by theirs: initial_sigma holds."""
        initialise_transformer(self)
        for parameter in self.parameters(recurse=False):
            parameter.normal_(0, DEVIATION)
        for block in self.blocks:
            assert isinstance(block, _Block)
            block.mixer.reset_parameters()

    def _run(self, images: Tensor, windows: list[Windows] | None) -> Tensor:
        o = self.options
        check_images(_WHO, images)
        if images.shape[2:] != (o.image_size, o.image_size):
            raise ValueError(
                f"{_WHO}: images must be {o.image_size} x {o.image_size} pixels, but are {images.shape[2]} x "
                f"{images.shape[3]}; resize them, or build the model with another image_size"
            )
        tokens = [self.cls_token.expand(images.shape[0], -1, -1)]
        if self.dist_token is not None:
            tokens.append(self.dist_token.expand(images.shape[0], -1, -1))
        tokens.append(self.patch_embed.proj(images).flatten(2).transpose(1, 2))
        x = self.pos_drop(torch.cat(tokens, 1) + self.pos_embed)
        for block in self.blocks:
            x = block(x, self.prefix_tokens, self.grid, windows)
        if o.readout == "mean":
            mean: Tensor = self.head(self.norm(x[:, self.prefix_tokens :]).mean(1))
            return mean
        x = self.norm(x[:, : self.prefix_tokens])  # of each token by itself; the patches' are not needed
        logits: Tensor = self.head(x[:, 0])
        if self.head_dist is None:
            return logits
        distilled: Tensor = self.head_dist(x[:, 1])
        return torch.stack((logits, distilled), 1) if self.training else (logits + distilled) / 2


def _named() -> dict[str, VisionTransformerOptions]:
    all_: dict[str, VisionTransformerOptions] = {}

    def add(name: str, **options: Any) -> None:
        for prefix, mixer in PREFIXES.items():
            all_[prefix + name] = VisionTransformerOptions(mixer=mixer, **options)

    sizes = {"tiny": (12, 192, 3), "small": (12, 384, 6), "base": (12, 768, 12), "large": (24, 1024, 16)}
    for size, (layers, features, heads) in sizes.items():
        for patch in (2, 4, 16):
            images = {"classes": 10, "image_size": 32} if patch < 16 else {}
            add(
                f"vit-{size}-patch{patch}", patch=patch, layers=layers, features=features, heads=heads,
                feedforward=4 * features, **images,
            )  # fmt: skip
    for distilled in (False, True):
        common = {"distilled": distilled, "stochastic_depth": 0.1}
        suffix = "-distilled" if distilled else ""
        add("deit-small" + suffix, features=384, heads=6, feedforward=1536, **common)
        add("deit-base" + suffix, **common)
    add("vit-cifar", classes=10, image_size=32, patch=2, layers=6, features=192, heads=3, feedforward=768)
    return all_


#: The named models: vit-{tiny,small,base,large}-patch{2,4,16}, deit-{small,base}[-distilled] and vit-cifar, each also
#: as cp-... with ContextPool and dw-... with a depthwise convolution in its place.
VISION_TRANSFORMERS = _named()
