"""The character language model: a pre-norm transformer decoder that predicts each next symbol from those before it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn._cache import TokenCache
from ..nn._option_table import PoolOptions
from ..nn._options import check_word
from ..nn._padding import Lengths, real_tokens
from ..nn.attention import Reach, ReachKind
from ..nn.block import BlockCache, MixerKind, MixOptions, Placement, TransformerBlock, windows_of_blocks
from ..nn.context_pool import Windows
from ..nn.positions import Positions, positions_of
from ._checkpoint import load_weights, read_model
from ._options import check_options

_DEVIATION = 0.02  # of the initial weights


@dataclasses.dataclass
class LanguageModelOptions(PoolOptions):
    """Every option of the model; those named ``pool_*`` are those of :class:`contextpool.nn.ContextPool1d`, but for
    ``pool_taps``, which is one of :class:`contextpool.nn.MixOptions`, as are ``mix`` and those named ``mixer_*``."""

    vocabulary: int = 256
    layers: int = 12
    features: int = 512
    heads: int = 8
    feedforward: int = 2048
    dropout: float = 0.0
    positions: str = "rotary"
    length: int = 2048
    attention: ReachKind = "full"
    window_first: int = 32
    window_last: int = 8192
    window_doublings: int = 0
    dilated_heads: int = 2
    span_limit: int = 8192
    span_loss: float = 5e-7
    mixer: MixerKind = "none"
    placement: Placement = "after_attention"
    mix: str = ""
    taps: int = 15
    mixer_taps: int = 4
    mixer_residual: str = "none"
    mixer_rank: int = 15
    mixer_heads: int = 0
    pool_taps: int = 0
    _: dataclasses.KW_ONLY
    pool_reference_length: int = 2048

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], who: str = "language model") -> LanguageModelOptions:
        """Options by name; those missing at their default. ``who`` opens the messages of errors."""
        check_options(cls, options, who)
        return cls(**options)

    def mixing(self) -> MixOptions:
        """Which mixers stand where, and what they share."""
        return MixOptions(
            self.mix, self.mixer_taps, self.mixer_residual, self.mixer_rank, self.mixer_heads, self.pool_taps
        )

    def reach(self, layer: int) -> Reach:
        """What attention sees in a layer. Windows grow by equal factors from window_first at the bottom to window_last
        at the top, those between rounded to powers of two; the dilation is 0 in the lower half, then 1, 2 and 3 in a
        sixth of the layers each."""
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


class LanguageModelCache(TokenCache):
    """What the model remembers of the symbols seen so far: which of them are real, and the caches of its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[BlockCache] = []

    @property
    def rows(self) -> int | None:
        """The batch's size; None before the first step."""
        return self.blocks[0].rows if self.blocks else None

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` symbols, for speculative decoding."""
        super().crop(length)
        for block in self.blocks:
            block.crop(length)

    def select(self, rows: Tensor) -> None:
        """Row b becomes what row ``rows[b]`` was (int64 ``[B']``), or the rows that are true stay (bool ``[B]``)."""
        super().select(rows)
        for block in self.blocks:
            block.select(rows)

    def repeat(self, times: int) -> None:
        """Each row becomes ``times`` equal ones that lie together, as ``torch.repeat_interleave`` orders them."""
        super().repeat(times)
        for block in self.blocks:
            block.repeat(times)


class LanguageModel(nn.Module):
    """x_0 = drop(token[t] + position), x_(l+1) = block_l(x_l), logits = head(norm(x_L)).

    Embedding and head are separate matrices. The parameters' names are those of the C++ model.
    """

    def __init__(
        self,
        options: LanguageModelOptions | None = None,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = o = options or LanguageModelOptions()
        sizes = ("vocabulary", "layers", "features", "heads", "feedforward", "length", "taps", "mixer_taps", "mixer_rank")
        for name in (*sizes, "window_first", "window_last", "span_limit"):
            if getattr(o, name) < 1:
                raise ValueError(f"language model: {name} must be positive, but is {getattr(o, name)}")
        check_word("language model", "attention", o.attention, ("full", "window", "adaptive_span"))
        if o.window_first > o.window_last:
            raise ValueError(
                f"language model: window_first must be at most window_last, {o.window_last}, but is {o.window_first}"
            )
        if not 0 <= o.span_loss < math.inf:
            raise ValueError(f"language model: span_loss must not be negative, but is {o.span_loss}")
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.token = nn.Embedding(o.vocabulary, o.features, **kind)
        self.position = Positions(o.positions, o.features, o.heads, o.length, **kind)
        self.dropout = nn.Dropout(o.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                o.features, o.heads, o.feedforward, o.dropout, True, o.mixer, o.placement, o.taps,
                {**o.pool(), "layer": layer}, o.reach(layer), o.mixing(), **kind,
            )
            for layer in range(o.layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(o.features, **kind)
        self.head = nn.Linear(o.features, o.vocabulary, **kind)
        self.reset_parameters()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], who: str = "language model") -> LanguageModel:
        """The model of these options, by name, as a checkpoint keeps them; new weights."""
        return cls(LanguageModelOptions.from_dict(options, who))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LanguageModel:
        """The trained model of a run folder, of a checkpoint's folder, or of a file in it; on the CPU, in eval mode. Of
        a folder that has the average of the weights, that. Needs the package ``safetensors``.

        Files are verified by the sizes and checksums of their checkpoint's MANIFEST.json. Of a run folder the newest
        checkpoint that passes is taken; a warning names those that were skipped, and why."""
        file, options, weights = read_model(Path(path), "language model")
        # Files of version 0.1.0 lack pool_size_range and have the paper's sizes.
        model = cls.from_options({"pool_size_range": 0.0, **options}, str(file))
        load_weights(model, weights, file)
        return model.eval()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights N(0, 0.02), biases 0, norms 1 and 0, spans 0; then what the mixers' start asks for: ContextPool's sizes
        and so on."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, _DEVIATION)
            else:
                parameter.fill_(1 if name.endswith("weight") else 0)  # of norms; else biases and spans
        for block in self._blocks():
            block.finish_initialisation()

    def span_loss(self) -> Tensor | None:
        """What training adds to its loss, so that a span grows only where that pays: span_loss * span_limit * the mean
        of all spans. None where there are none."""
        spans = self._spans()
        return torch.stack(spans).mean() * (self.options.span_loss * self.options.span_limit) if spans else None

    @torch.no_grad()
    def clamp_spans(self) -> None:
        """After a step of training: spans back into [0, 1], where they have a gradient."""
        for span in self._spans():
            span.clamp_(0, 1)

    def _spans(self) -> list[Tensor]:
        return [block.attention.span for block in self._blocks() if block.attention.span is not None]

    def forward(
        self,
        tokens: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """tokens int64 [batch, length] to logits [batch, length, vocabulary].

        lengths [batch], mask [batch, length] (true where a symbol is real) or key_padding_mask (true where it is not)
        say what is padding, on either side of a row. A symbol's position is how many real ones come before it, so that
        a row has the same logits however it is padded; those at padding mean nothing."""
        self._check(tokens)
        real = real_tokens("language model", tokens.shape, tokens.device, lengths, mask, key_padding_mask)
        at = None if real is None else positions_of(real)
        x = self.dropout(self.position.add(self.token(tokens), 0, at))
        rotation = self.position.rotation(x, 0, at)
        for block in self.blocks:
            x = block(x, rotation, mask=real)
        return self._logits(x)

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def windows(self, tokens: Tensor) -> list[Windows]:
        """What each layer's ContextPool predicts for these tokens (the first, where a block has several); empty where
        there is none."""
        self._check(tokens)
        x = self.dropout(self.position.add(self.token(tokens), 0))
        return windows_of_blocks(self._blocks(), x, self.position.rotation(x, 0))

    def step(
        self,
        tokens: Tensor,
        cache: LanguageModelCache,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """The next symbols [batch, new] of the rows in the cache (empty at the start), which then is longer: logits
        [batch, new, vocabulary] equal to the last of ``forward`` over all of them. In eval mode.

        mask [batch, new] (or key_padding_mask) as for ``forward``; the cache remembers it, so a left-padded batch needs
        it for the prompt only. Under ``torch.no_grad()`` unless gradients are wanted: with them each step keeps its
        graph."""
        self._check(tokens)
        cache.check_rows("language model", tokens)
        fresh = real_tokens("language model", tokens.shape, tokens.device, None, mask, key_padding_mask)
        if not cache.blocks:
            cache.blocks = [BlockCache() for _ in self.blocks]
        real = cache.append_mask(fresh, tokens)
        at = None if real is None else positions_of(real)[:, cache.length :]
        x = self.dropout(self.position.add(self.token(tokens), cache.length, at))
        rotation = self.position.rotation(x, cache.length, at)
        for block, block_cache in zip(self._blocks(), cache.blocks, strict=True):
            x = block.step(x, block_cache, rotation, fresh)
        cache.length += tokens.shape[1]
        return self._logits(x)

    def _blocks(self) -> Iterator[TransformerBlock]:
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            yield block

    def _check(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or tokens.shape[1] == 0:
            hint = "; tokens.unsqueeze(0) makes a batch of one row" if tokens.dim() == 1 else ""
            raise ValueError(
                "language model: tokens must be int64 [batch, length] with at least one token, but are "
                f"{tokens.dtype} {list(tokens.shape)}{hint}"
            )

    def _logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits
