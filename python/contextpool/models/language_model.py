"""The character language model: a pre-norm transformer decoder that predicts each next symbol from those before it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.attention import Reach
from ..nn.block import BlockCache, TransformerBlock
from ..nn.positions import Positions

_DEVIATION = 0.02  # of the initial weights
_METADATA = "contextpool.model"  # the key under which a checkpoint keeps the options
_FILES = ("ema.safetensors", "model.safetensors")  # of a checkpoint, best first: the average of the weights, if kept


@dataclasses.dataclass
class LanguageModelOptions:
    """Every option of the model; those named ``pool_*`` are those of :class:`contextpool.nn.ContextPool1d`."""

    vocabulary: int = 256
    layers: int = 12
    features: int = 512
    heads: int = 8
    feedforward: int = 2048
    dropout: float = 0.0
    positions: str = "rotary"
    length: int = 2048
    attention: str = "full"
    window_first: int = 32
    window_last: int = 8192
    window_doublings: int = 0
    dilated_heads: int = 2
    span_limit: int = 8192
    span_loss: float = 5e-7
    mixer: str = "none"
    placement: str = "after_attention"
    taps: int = 15
    pool_predictor: str = "conv"
    pool_weights: str = "softmax"
    pool_locality: str = "gaussian"
    pool_size_norm: str = "sigmoid"
    pool_ratio: float = 0.1
    pool_reference_length: int = 2048
    pool_initial_sigma: float = 4.0
    pool_hidden: int = 64
    pool_kernel: int = 3
    pool_groups: int = 1
    pool_window: float = 4.0
    pool_seed: int = 0

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], who: str = "language model") -> LanguageModelOptions:
        """Options by name; those missing at their default. ``who`` opens the messages of errors."""
        types = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for name, value in options.items():
            if name not in types:
                near = get_close_matches(name, types, n=1, cutoff=0)[0]
                raise ValueError(f'{who}: unknown option "{name}"; did you mean "{near}"?')
            expected = (int, float) if types[name] is float else types[name]
            if isinstance(value, bool) or not isinstance(value, expected):
                raise ValueError(f"{who}: {name} must be of type {types[name].__name__}, but is {value!r}")
        return cls(**options)

    def pool(self) -> dict[str, Any]:
        """The options of ContextPool, by the names it knows."""
        return {name[5:]: value for name, value in vars(self).items() if name.startswith("pool_")}

    def reach(self, layer: int) -> Reach:
        """What attention sees in a layer. Windows grow by equal factors from window_first at the bottom to window_last at
        the top, those between rounded to powers of two; the dilation is 0 in the lower half, then 1, 2 and 3 in a sixth
        of the layers each."""
        if layer in (0, self.layers - 1):
            window = self.window_last if layer > 0 else self.window_first
        else:
            first, last = math.log2(self.window_first), math.log2(self.window_last)
            rounded = 2 ** math.floor(first + (last - first) * layer / (self.layers - 1) + 0.5)
            window = min(max(rounded, self.window_first), self.window_last)
        dilation = max(0, (12 * layer // self.layers - 4) // 2)
        return Reach(
            self.attention, window, dilation, self.dilated_heads, self.length, self.window_doublings, self.span_limit
        )


@dataclasses.dataclass
class LanguageModelCache:
    """What the blocks remember of the symbols seen so far."""

    blocks: list[BlockCache] = dataclasses.field(default_factory=list)
    length: int = 0


class LanguageModel(nn.Module):
    """x_0 = drop(token[t] + position), x_(l+1) = block_l(x_l), logits = head(norm(x_L)).

    Embedding and head are separate matrices. The parameters' names are those of the C++ model.
    """

    def __init__(self, options: LanguageModelOptions | None = None) -> None:
        super().__init__()
        self.options = o = options or LanguageModelOptions()
        sizes = ("vocabulary", "layers", "features", "heads", "feedforward", "length", "taps")
        for name in (*sizes, "window_first", "window_last", "span_limit"):
            if getattr(o, name) < 1:
                raise ValueError(f"language model: {name} must be positive, but is {getattr(o, name)}")
        if o.window_first > o.window_last:
            raise ValueError(
                f"language model: window_first must be at most window_last, {o.window_last}, but is {o.window_first}"
            )
        if not 0 <= o.span_loss < math.inf:
            raise ValueError(f"language model: span_loss must not be negative, but is {o.span_loss}")
        self.token = nn.Embedding(o.vocabulary, o.features)
        self.position = Positions(o.positions, o.features, o.heads, o.length)
        self.dropout = nn.Dropout(o.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                o.features, o.heads, o.feedforward, o.dropout, True, o.mixer, o.placement, o.taps,
                {**o.pool(), "layer": layer}, o.reach(layer),
            )
            for layer in range(o.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(o.features)
        self.head = nn.Linear(o.features, o.vocabulary)
        self.reset_parameters()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], who: str = "language model") -> LanguageModel:
        """The model of these options, by name, as a checkpoint keeps them; new weights."""
        return cls(LanguageModelOptions.from_dict(options, who))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LanguageModel:
        """The trained model of a run folder (its newest checkpoint), of a checkpoint's folder, or of a file in it; on the
        CPU, in eval mode. Of a folder that has the average of the weights, that. Needs the package ``safetensors``."""
        from safetensors import safe_open

        file = _model_file(Path(path))
        with safe_open(str(file), "pt") as opened:
            metadata = opened.metadata() or {}
            if _METADATA not in metadata:
                raise ValueError(f"{file}: not a checkpoint of a language model: no {_METADATA} in its metadata")
            weights = {name: opened.get_tensor(name) for name in opened.keys()}
        model = cls.from_options(json.loads(metadata[_METADATA]), str(file))
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{file}: its tensors are not those of its own model: {error}") from error
        return model.eval()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights N(0, 0.02), biases 0, norms 1 and 0, spans 0; then ContextPool's sizes as its initial_sigma asks."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, _DEVIATION)
            else:
                parameter.fill_(1 if name.endswith("weight") else 0)  # of norms; else biases and spans
        for block in self.blocks:
            if block.context_pool is not None:
                block.context_pool.reset_sizes()

    def span_loss(self) -> Tensor | None:
        """What training adds to its loss, so that a span grows only where that pays: span_loss * span_limit * the mean of
        all spans. None where there are none."""
        spans = self._spans()
        return torch.stack(spans).mean() * (self.options.span_loss * self.options.span_limit) if spans else None

    @torch.no_grad()
    def clamp_spans(self) -> None:
        """After a step of training: spans back into [0, 1], where they have a gradient."""
        for span in self._spans():
            span.clamp_(0, 1)

    def _spans(self) -> list[Tensor]:
        return [block.attention.span for block in self.blocks if block.attention.span is not None]

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64 [batch, length] to logits [batch, length, vocabulary]."""
        x = self.dropout(self.position.add(self.token(tokens)))
        rotation = self.position.rotation(x)
        for block in self.blocks:
            x = block(x, rotation)
        return self.head(self.norm(x))

    def step(self, tokens: Tensor, cache: LanguageModelCache) -> Tensor:
        """The next symbols [batch, new] of the rows in the cache (empty at the start), which then is longer: logits
        [batch, new, vocabulary] equal to the last of ``forward`` over all of them. In eval mode."""
        if not cache.blocks:
            cache.blocks = [BlockCache() for _ in self.blocks]
        x = self.dropout(self.position.add(self.token(tokens), cache.length))
        rotation = self.position.rotation(x, cache.length)
        for block, block_cache in zip(self.blocks, cache.blocks, strict=True):
            x = block.step(x, block_cache, rotation)
        cache.length += tokens.shape[1]
        return self.head(self.norm(x))


def _model_file(path: Path) -> Path:
    """The file meant by a path to a file, a checkpoint's folder or a run folder."""
    if path.is_file():
        return path
    if not any((path / name).is_file() for name in _FILES):
        steps = [p for p in (path / "checkpoints").glob("step-*") if (p / "MANIFEST.json").is_file()]
        numbered = {int(p.name[5:]): p for p in steps if p.name[5:].isdigit()}
        if not numbered:
            raise FileNotFoundError(f"{path}: no {_FILES[1]} and no checkpoints/step-N/ with a MANIFEST.json in it")
        path = numbered[max(numbered)]
    return next(path / name for name in _FILES if (path / name).is_file())
