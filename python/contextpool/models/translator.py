"""The translator: an encoder of the source and a decoder that predicts each next symbol of the target."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn._option_table import PoolOptions
from ..nn._options import check_word
from ..nn._padding import Lengths, real_tokens
from ..nn.attention import Reach
from ..nn.block import PLACEMENTS, PLACES, MixOptions, TransformerBlock, windows_of_blocks
from ..nn.context_pool import Windows
from ..nn.decoder_block import DecoderBlock, DecoderBlockCache
from ..nn.local_attention import LocalWindows
from ..nn.mixer import mixer_kinds, parse_places
from ..nn.positions import Positions, positions_of
from ._checkpoint import load_weights, read_model
from ._options import check_options
from .beam_search import BeamDecoder, BeamSearchOptions, Hypothesis, beam_search

_WHO = "translator"
_MAX_SIZE = 1 << 24  # of any size: far beyond any use
_IGNORED = -100  # the target that cross_entropy leaves out
_MAY_BE_0 = ("source_vocabulary", "decoder_layers", "begin", "end", "mixer_heads")


@dataclasses.dataclass
class TranslatorOptions(PoolOptions):
    """Every option of the model, as the C++ model has them; ``contextpool train --help`` describes each.

    Those named ``pool_*`` are those of :class:`contextpool.nn.ContextPool1d`, but for ``pool_taps``, which is one of
    :class:`contextpool.nn.MixOptions`, as are ``mix`` and those named ``mixer_*`` other than ``mixer_in``, and for
    ``pool_source_length``, the encoder's ``reference_length``."""

    vocabulary: int = 32000
    source_vocabulary: int = 0
    begin: int = 2
    end: int = 1
    layers: int = 6
    decoder_layers: int = 0
    features: int = 512
    heads: int = 8
    feedforward: int = 2048
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    positions: str = "sinusoidal"
    length: int = 256
    tied: bool = True
    encoder_attention: str = "full"
    decoder_attention: str = "full"
    cross_attention: str = "full"
    area_width: int = 5
    mixer: str = "none"
    placement: str = "after_attention"
    mixer_in: str = "encoder,decoder,cross"
    mix: str = ""
    taps: int = 15
    mixer_taps: int = 4
    mixer_residual: str = "none"
    mixer_rank: int = 15
    mixer_heads: int = 0
    pool_taps: int = 0
    _: dataclasses.KW_ONLY
    pool_source_length: int = 0
    pool_reference_length: int = 64

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], who: str = _WHO) -> TranslatorOptions:
        """Options by name; those missing at their default. ``who`` opens the messages of errors."""
        check_options(cls, options, who)
        return cls(**options)

    def validate(self) -> None:
        """ValueError, with the reason, for options that cannot be built. The model calls it itself."""
        for name, value in vars(self).items():
            if type(value) is not int or name.startswith("pool_"):
                continue
            least = 0 if name in _MAY_BE_0 else 1
            if not least <= value <= _MAX_SIZE:
                raise ValueError(f"{_WHO}: {name} must be from {least} to {_MAX_SIZE}, but is {value}")
        for name in ("begin", "end"):
            if getattr(self, name) >= self.vocabulary:
                raise ValueError(
                    f"{_WHO}: {name} must be one of the {self.vocabulary} symbols, but is {getattr(self, name)}"
                )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"{_WHO}: dropout must be in [0, 1), but is {self.dropout}")

    def encoder_block(self, layer: int) -> dict[str, Any]:
        """The arguments of a block of the encoder."""
        taps = self.mixer_taps - (1 if self.mixer_taps % 2 == 0 else 0)  # what looks both ways has a middle
        pool = {"reference_length": self.pool_source_length}
        if self.pool_reference_length > 0:
            pool["usual_length"] = self.pool_reference_length
        return {
            **self._block("encoder", taps, {**self.pool(), "layer": layer, **pool}),
            "causal": False,
            "reach": self._reach("encoder_attention", layer),
        }

    def decoder_block(self, layer: int) -> dict[str, Any]:
        """The arguments of a block of the decoder."""
        decoder_layers = self.decoder_layers or self.layers
        places = self._places()
        return {
            **self._block("decoder", self.mixer_taps, {**self.pool(), "layer": self.layers + layer}),
            "causal": True,
            "reach": self._reach("decoder_attention", layer),
            "cross_attention": self._word("cross_attention", layer),
            "cross_mixer": places.get("X", "none") if self._mixes_in("cross") else "none",
            "cross_pool": {"layer": self.layers + decoder_layers + layer},
        }

    def _block(self, where: str, mixer_taps: int, pool: dict[str, Any]) -> dict[str, Any]:
        own = {place: kind for place, kind in self._places().items() if place in PLACES}
        places = ",".join(f"{place}={kind}" for place, kind in own.items()) if self._mixes_in(where) else ""
        return {
            "features": self.features,
            "heads": self.heads,
            "feedforward": self.feedforward,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation_dropout": self.activation_dropout,
            "activation": self.activation,
            "taps": self.taps,
            "pool": pool,
            "mix": MixOptions(
                places, mixer_taps, self.mixer_residual, self.mixer_rank, self.mixer_heads, self.pool_taps
            ),
        }

    def _word(self, option: str, layer: int) -> str:
        """The kind of attention in a layer; the last of the list holds for all layers above."""
        words = getattr(self, option).replace(" ", "").split(",")
        for word in words:
            check_word(_WHO, option, word, ("full", "local", "area"))
        found: str = words[min(layer, len(words) - 1)]
        return found

    def _reach(self, option: str, layer: int) -> Reach:
        return Reach(self._word(option, layer), area_width=self.area_width)  # type: ignore[arg-type]

    def _mixes_in(self, where: str) -> bool:
        words = self.mixer_in.replace(" ", "").split(",") if self.mixer_in else []
        for word in words:
            check_word(_WHO, "mixer_in", word, ("encoder", "decoder", "cross"))
        return where in words

    def _places(self) -> dict[str, str]:
        """The kind of mixer in each place, X being that after attention over the source."""
        check_word(_WHO, "mixer", self.mixer, mixer_kinds())
        check_word(_WHO, "placement", self.placement, tuple(PLACEMENTS))
        if self.mix:
            return parse_places(_WHO, self.mix, "ABOXCDE")
        return {} if self.mixer == "none" else {PLACEMENTS[self.placement]: self.mixer, "X": self.mixer}


class EncodedSource(NamedTuple):
    """The source as the decoder sees it."""

    features: Tensor  #: ``[batch, tokens, features]``
    real: Tensor | None  #: ``[batch, tokens]``, false where a token is padding; None: none is


class TranslatorCache:
    """What the decoder remembers of the symbols seen so far, and of the source: the keys and values of all layers."""

    def __init__(self, blocks: list[DecoderBlockCache]) -> None:
        self.blocks, self.length = blocks, 0

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` symbols of the target."""
        if not 0 <= length <= self.length:
            raise ValueError(
                f"{_WHO}: crop keeps the first symbols, from 0 to all {self.length}, but was asked for {length}"
            )
        for block in self.blocks:
            block.crop(length)
        self.length = length

    def select(self, rows: Tensor) -> None:
        """Row b becomes what row ``rows[b]`` was (int64 ``[B']``), or the rows that are true stay (bool ``[B]``)."""
        for block in self.blocks:
            block.select(rows)

    def reorder(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """The same for rows that stay with their sentence, the row of the source that they share since ``repeat``;
        ``sentences`` are the numbers of those that stay, None where all do. Cheaper than ``select``."""
        for block in self.blocks:
            block.reorder(rows, sentences)

    def repeat(self, times: int) -> None:
        """Each row becomes ``times`` equal ones that lie together; they share what is kept of the source."""
        for block in self.blocks:
            block.repeat(times)


class Translator(nn.Module):
    """tensor2tensor's pre-norm transformer. With E the embedding, d its features, p the positions::

        s_0 = drop(sqrt(d) E[source] + p),   s_(l+1) = encoder_l(s_l),      m = encoder_norm(s_L)
        t_0 = drop(sqrt(d) E[target] + p),   t_(l+1) = decoder_l(t_l, m),   logits = E decoder_norm(t_L)

    Source, target and softmax share one embedding, unless the source has a vocabulary of its own or the head is not
    tied. The parameters' names are those of the C++ model. No bit of a logit depends on a later symbol of the target.
    """

    def __init__(
        self,
        options: TranslatorOptions | None = None,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.options = o = options or TranslatorOptions()
        o.validate()
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.token = nn.Embedding(o.vocabulary, o.features, **kind)
        self.source_token = nn.Embedding(o.source_vocabulary, o.features, **kind) if o.source_vocabulary else None
        self.position = Positions(o.positions, o.features, o.heads, o.length, **kind)
        self.dropout = nn.Dropout(o.dropout)
        self.encoder = nn.ModuleList(TransformerBlock(**o.encoder_block(layer), **kind) for layer in range(o.layers))
        self.encoder_norm = nn.LayerNorm(o.features, **kind)
        self.decoder = nn.ModuleList(
            DecoderBlock(**o.decoder_block(layer), **kind) for layer in range(o.decoder_layers or o.layers)
        )
        self.decoder_norm = nn.LayerNorm(o.features, **kind)
        self.head = None if o.tied else nn.Linear(o.features, o.vocabulary, bias=False, **kind)
        self.reset_parameters()

    @classmethod
    def from_options(cls, options: Mapping[str, Any], who: str = _WHO) -> Translator:
        """The model of these options, by name, as a checkpoint keeps them; new weights."""
        return cls(TranslatorOptions.from_dict(options, who))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Translator:
        """The trained model of a run folder, of a checkpoint's folder, or of a file in it; on the CPU, in eval mode. Of
        a folder that has the average of the weights, that. Needs the package ``safetensors``.

        Files are verified by the sizes and checksums of their checkpoint's MANIFEST.json. Of a run folder the newest
        checkpoint that passes is taken; a warning names those that were skipped, and why."""
        file, options, weights = read_model(Path(path), _WHO)
        model = cls.from_options(options, str(file))
        load_weights(model, weights, file)
        return model.eval()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As tensor2tensor: matrices uniform with the variance 2 / (inputs + outputs), q, k and v each a matrix of its
        own; embeddings N(0, 1 / d); biases 0, norms 1 and 0. Mixers by their own rules."""
        for embedding in (self.token, self.source_token, self.head):
            if embedding is not None:
                embedding.weight.normal_(0, self.options.features**-0.5)
        for block in (*self._encoder(), *self._decoder()):
            _reset_block(block)
        self.encoder_norm.reset_parameters()
        self.decoder_norm.reset_parameters()

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """source int64 ``[batch, S]`` and target int64 ``[batch, T]``, each row of it beginning with ``options.begin``,
        to logits ``[batch, T, vocabulary]``, those at t of the symbol after ``target[t]``.

        lengths ``[batch]``, mask ``[batch, S]`` (true where a token is real) or key_padding_mask (true where it is not)
        say what is padding in the source. Padding of the target is to its right, where it reaches nothing; its logits
        mean nothing."""
        return self.decode(target, self.encode(source, lengths, mask, key_padding_mask))

    if TYPE_CHECKING:  # torch leaves the call untyped
        __call__ = forward

    def encode(
        self,
        source: Tensor,
        lengths: Lengths | None = None,
        mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> EncodedSource:
        """The source as the decoder sees it."""
        _check("source", source)
        real = real_tokens(_WHO, source.shape, source.device, lengths, mask, key_padding_mask)
        at = None if real is None else positions_of(real)
        # Any number may stand where there is no token.
        tokens = source if real is None else source.masked_fill(~real, 0)
        x = self._embed(self.token if self.source_token is None else self.source_token, tokens, 0, at)
        rotation = self.position.rotation(x, 0, at)
        for block in self._encoder():
            x = block(x, rotation, mask=real)
        return EncodedSource(self.encoder_norm(x), real)

    def encoder_windows(self, source: Tensor) -> list[Windows]:
        """What the ContextPool of each of the encoder's layers predicts for a source without padding; empty where there
        is none."""
        _check("source", source)
        x = self._embed(self.token if self.source_token is None else self.source_token, source, 0)
        return windows_of_blocks(self._encoder(), x, self.position.rotation(x, 0))

    def decode(self, target: Tensor, source: EncodedSource, last_only: bool = False) -> Tensor:
        """The logits of ``forward``, given the encoded source; or, with last_only, those of the last symbols,
        ``[batch, 1, vocabulary]``."""
        _check("target", target)
        if target.shape[0] != source.features.shape[0]:
            raise ValueError(
                f"{_WHO}: the target has {target.shape[0]} rows, but the source has {source.features.shape[0]}"
            )
        x = self._embed(self.token, target, 0)
        rotation = self.position.rotation(x)
        for block in self._decoder():
            x = block(x, block.remember(source.features, mask=source.real), rotation)
        return self._logits(x[:, -1:] if last_only else x)

    def start(self, source: EncodedSource) -> TranslatorCache:
        """The cache of a target without symbols."""
        return TranslatorCache(
            [DecoderBlockCache(block.remember(source.features, mask=source.real)) for block in self._decoder()]
        )

    def step(self, target: Tensor, cache: TranslatorCache) -> Tensor:
        """The next symbols ``[batch, new]`` of the targets in the cache, the very first of them ``options.begin``:
        logits ``[batch, new, vocabulary]`` equal to the last of ``forward`` over all of them. In eval mode, under
        ``torch.no_grad()`` unless gradients are wanted."""
        _check("target", target)
        x = self._embed(self.token, target, cache.length)
        rotation = self.position.rotation(x, cache.length)
        for block, block_cache in zip(self._decoder(), cache.blocks, strict=True):
            x = block.step(x, block_cache, rotation)
        cache.length += target.shape[1]
        return self._logits(x)

    @torch.no_grad()
    def translate(
        self, sources: Sequence[Sequence[int]], options: BeamSearchOptions | None = None
    ) -> list[list[Hypothesis]]:
        """Of each sentence the ``n_best`` translations, best first, by beam search on the model's device.

        sources: the symbols of each sentence, as the model was trained on them. Sentences are one batch: similar
        lengths waste the least. What a sentence becomes does not depend on the others, but for rounding. In eval mode,
        whatever mode the model is in."""
        options = options or BeamSearchOptions()
        if not sources:
            return []
        o, device, training = self.options, self.token.weight.device, self.training
        known, lengths = o.source_vocabulary or o.vocabulary, [len(source) for source in sources]
        for number, source in enumerate(sources):
            for symbol in source:
                if not 0 <= symbol < known:
                    raise ValueError(
                        f"translate: sentence {number} holds symbol {symbol}, but the model knows 0 to {known - 1}"
                    )
        longest = [length + options.extra_length for length in lengths]
        if o.positions == "learned":
            longest = [min(length, o.length) for length in longest]
        width = max(1, *lengths)
        tokens = torch.tensor([[*source, *[0] * (width - len(source))] for source in sources], device=device)
        self.eval()
        try:
            with warnings.catch_warnings():
                # A batch of empty sentences is what it looks like.
                warnings.filterwarnings("ignore", message=".*mask has no real token")
                encoded = self.encode(tokens, torch.tensor(lengths, device=device))
                decoder = (CachedDecoder if options.cached else UncachedDecoder)(self, encoded, options.beam)
                return beam_search(decoder, longest, o.begin, o.end, options, device)
        finally:
            self.train(training)

    def _encoder(self) -> Iterator[TransformerBlock]:
        for block in self.encoder:
            assert isinstance(block, TransformerBlock)
            yield block

    def _decoder(self) -> Iterator[DecoderBlock]:
        for block in self.decoder:
            assert isinstance(block, DecoderBlock)
            yield block

    def _embed(self, embedding: nn.Embedding, tokens: Tensor, first: int, at: Tensor | None = None) -> Tensor:
        scaled = embedding(tokens) * math.sqrt(self.options.features)
        x: Tensor = self.dropout(self.position.add(scaled, first, at))
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.token.weight if self.head is None else self.head.weight)


class CachedDecoder(BeamDecoder):
    """Beam search over a translator: a step for each symbol, with caches that the hypotheses of a sentence share."""

    def __init__(self, model: Translator, source: EncodedSource, beam: int) -> None:
        self.model, self.cache = model, model.start(source)
        self.cache.repeat(beam)

    def step(self, tokens: Tensor) -> Tensor:
        return self.model.step(tokens.unsqueeze(1), self.cache).squeeze(1)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        self.cache.reorder(rows, sentences)


class UncachedDecoder(BeamDecoder):
    """The same without caches: every step runs over all symbols so far. Slow; for checking."""

    def __init__(self, model: Translator, source: EncodedSource, beam: int) -> None:
        self.model, self.target = model, torch.empty(0)
        real = None if source.real is None else source.real.repeat_interleave(beam, 0)
        self.source = EncodedSource(source.features.repeat_interleave(beam, 0), real)

    def step(self, tokens: Tensor) -> Tensor:
        fresh = tokens.unsqueeze(1)
        self.target = fresh if self.target.numel() == 0 else torch.cat((self.target, fresh), 1)
        return self.model.decode(self.target, self.source, last_only=True).squeeze(1)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        features, real = self.source
        self.target = self.target.index_select(0, rows)
        self.source = EncodedSource(features.index_select(0, rows), None if real is None else real.index_select(0, rows))


def label_smoothed_loss(
    logits: Tensor, targets: Tensor, smoothing: float = 0.1, mask: Tensor | None = None
) -> Tensor:
    """Cross-entropy with label smoothing, the mean over the real symbols (mask ``[batch, T]``; all unless given) of the
    targets int64 ``[batch, T]``, in float32 or wider: the target has the share ``1 - smoothing``, and the rest is spread
    evenly over all symbols."""
    if logits.dim() != 3 or logits.shape[:2] != targets.shape:
        raise ValueError(
            "label_smoothed_loss: logits must be [batch, length, vocabulary] and targets [batch, length], but are "
            f"{list(logits.shape)} and {list(targets.shape)}"
        )
    real = real_tokens("label_smoothed_loss", targets.shape, targets.device, None, mask)
    counted = targets if real is None else targets.masked_fill(~real, _IGNORED)
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(scores.flatten(0, 1), counted.flatten(), ignore_index=_IGNORED, label_smoothing=smoothing)


def _check(what: str, tokens: Tensor) -> None:
    if tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32) or tokens.shape[1] == 0:
        hint = "; unsqueeze(0) makes a batch of one row" if tokens.dim() == 1 else ""
        raise ValueError(
            f"{_WHO}: {what} must be int64 [batch, length] with at least one token, but is "
            f"{tokens.dtype} {list(tokens.shape)}{hint}"
        )


def _reset_block(block: TransformerBlock) -> None:
    """Attention, feed-forward and norms; mixers by their own rules."""
    for name, parameter in block.named_parameters():
        norm = name.startswith(("norm", "cross_norm"))
        ours = norm or name.startswith(("attention.", "cross_attention.", "feedforward."))
        if not ours or ".local." in name:
            continue
        if parameter.dim() == 1:
            parameter.fill_(1 if norm and name.endswith("weight") else 0)
        else:
            parts = 3 if name.endswith("qkv.weight") else 2 if name.endswith("kv.weight") else 1
            bound = math.sqrt(6 / (parameter.shape[0] // parts + parameter.shape[1]))
            parameter.uniform_(-bound, bound)
    for module in block.modules():
        if isinstance(module, LocalWindows):
            module.reset_parameters()
    mixers = [block.mixer(place) for place in block.places]
    if isinstance(block, DecoderBlock):
        mixers.append(block.cross_mixer)
    for mixer in mixers:
        if mixer is not None:
            mixer.reset_parameters()
