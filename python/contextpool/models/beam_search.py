"""Beam search: the likeliest translations of a batch of sentences, symbol by symbol."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor

_LOW_BITS = 0xFFFFFFFF
_ALL_BUT_SIGN = 0x7FFFFFFF


@dataclasses.dataclass
class BeamSearchOptions:
    """How translations are searched for."""

    beam: int = 4  #: hypotheses of a sentence; 1: greedy decoding
    alpha: float = 0.6  #: how much the length penalty favours long translations
    n_best: int = 1  #: translations of a sentence, at most the beam
    extra_length: int = 50  #: symbols that a translation may have more than its source, its end included
    cached: bool = True  #: False: every step runs over all symbols so far, slow; for checking

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= 4096:
            raise ValueError(f"beam search: beam must be from 1 to 4096, but is {self.beam}")
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"beam search: n_best must be from 1 to the beam, {self.beam}, but is {self.n_best}")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"beam search: alpha must be 0 or more, but is {self.alpha}")
        if not 1 <= self.extra_length <= 1_000_000:
            raise ValueError(f"beam search: extra_length must be from 1 to 1000000, but is {self.extra_length}")


@dataclasses.dataclass
class Hypothesis:
    """A translation."""

    tokens: list[int]  #: without the end symbol
    log_probability: float  #: of the tokens and of the end after them
    score: float  #: the same, divided by the length penalty


class BeamDecoder(ABC):
    """What the search asks of a model: it keeps ``beam`` rows for each sentence, those of a sentence together."""

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """The rows continue with these symbols, int64 ``[rows]``: logits ``[rows, vocabulary]`` of the symbols after
        them."""

    @abstractmethod
    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Row r continues from what row ``rows[r]`` held, int64 ``[sentences' * beam]``: a row of the same sentence.
        ``sentences`` are the numbers of those that stay, or None where all do; ``rows`` counts those before."""


@dataclasses.dataclass
class _Sentence:
    number: int
    longest: int
    live: list[tuple[list[int], float]]  # symbols and log-probability, the likeliest first
    best: list[Hypothesis]  # complete ones, the best first


def length_penalty(length: int, alpha: float) -> float:
    """``((5 + length) / 6) ** alpha``."""
    return float(((5 + length) / 6) ** alpha)


@torch.no_grad()
def beam_search(
    decoder: BeamDecoder,
    longest: Sequence[int],
    begin: int = 2,
    end: int = 1,
    options: BeamSearchOptions | None = None,
    device: torch.device | str | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` translations of each sentence, best first.

    With log P the sum of the log-probabilities of a translation's symbols, its end symbol included, and ``|Y|`` how
    many they are, translations are ranked by Google NMT's score ``log P / ((5 + |Y|) / 6) ** alpha``.

    At each step a sentence's ``beam`` live hypotheses are continued by every symbol. Of the ``2 * beam`` likeliest
    continuations those that end are complete, and the best of the others live on. A sentence leaves the batch when no
    live hypothesis can come among its ``n_best`` any more. A hypothesis that reaches the longest length must end there.
    A beam of 1 is greedy decoding: the likeliest symbol, until that is the end. Equal log-probabilities are ranked by
    hypothesis, then by symbol, so that the same model gives the same translations.

    Args:
        decoder: the model.
        longest: of each sentence, the most symbols of a translation, its end included.
        begin, end: the symbol before the first, and the one after the last.
        options: the beam and its scores.
        device: of the decoder.
    """
    return _Search(decoder, longest, begin, end, options or BeamSearchOptions(), device).run()


class _Search:
    def __init__(
        self,
        decoder: BeamDecoder,
        longest: Sequence[int],
        begin: int,
        end: int,
        options: BeamSearchOptions,
        device: torch.device | str | None,
    ) -> None:
        self.decoder, self.end, self.options, self.device = decoder, end, options, device
        for number, most in enumerate(longest):
            if most < 1:
                raise ValueError(
                    f"beam search: a translation must have room for its end, but sentence {number} may have {most} "
                    "symbols"
                )
        # The first step has one hypothesis, without symbols; the other rows are not alive.
        self.sentences = [_Sentence(number, most, [([], 0.0)], []) for number, most in enumerate(longest)]
        self.last = [begin] * (options.beam * len(longest))  # the last symbol of each row
        self.results: list[list[Hypothesis]] = [[] for _ in longest]

    def run(self) -> list[list[Hypothesis]]:
        length = 1
        while self.sentences:
            found = self._likeliest(length)
            parents = [self._grow(*pair, length) for pair in zip(self.sentences, found, strict=True)]
            self._extend(parents, length)
            length += 1
        return self.results

    def _likeliest(self, length: int) -> list[list[tuple[float, int, int]]]:
        """Of each sentence the likeliest continuations in order: log-probability, row and symbol."""
        beam = self.options.beam
        logits = self.decoder.step(torch.tensor(self.last, device=self.device))
        vocabulary = logits.shape[1]
        if not 0 <= self.end < vocabulary:
            raise ValueError(f"beam search: the end symbol is {self.end}, but the model knows 0 to {vocabulary - 1}")
        if beam * vocabulary > _LOW_BITS:
            raise ValueError(f"beam search: a beam of {beam} is too large for {vocabulary} symbols")
        logs = logits.float().log_softmax(1)
        wrong = logs[:, 0].isnan().any()  # a NaN in a row makes all of it so
        if any(sentence.longest <= length for sentence in self.sentences):
            last = [sentence.longest <= length for sentence in self.sentences for _ in range(beam)]
            others = torch.arange(vocabulary, device=logs.device) != self.end
            logs = logs.masked_fill(torch.tensor(last, device=logs.device).unsqueeze(1) & others, -math.inf)
        wanted = min(1 if beam == 1 else 2 * beam, beam * vocabulary)
        found = self._keys_of_best(logs, wanted, wrong)
        keys, (tie, bad) = found[:-2], found[-2:].tolist()
        if bad:
            raise ValueError("beam search: the model's logits are NaN")
        if tie:
            keys = self._keys_of_all(logs, wanted)
        return self._candidates(keys.view(-1, wanted), vocabulary)

    def _keys_of_best(self, logs: Tensor, wanted: int, wrong: Tensor) -> Tensor:
        """The largest keys of each sentence, in order, on the host; then whether a symbol was left out that is as likely
        as the last of its row that was not, and whether something was wrong. Only the likeliest symbols of each row are
        looked at."""
        beam, vocabulary = self.options.beam, logs.shape[1]
        most = min(wanted, vocabulary)
        value, symbol = logs.topk(min(most + 1, vocabulary), 1)
        tie = torch.zeros_like(wrong)
        if most < vocabulary:
            tie = ((value[:, most - 1] == value[:, most]) & (value[:, most] > -math.inf)).any()
        row = torch.arange(beam, device=logs.device).repeat(len(self.sentences))
        place = (row * vocabulary).unsqueeze(1) + symbol[:, :most]
        keys = self._by_sentence(_sortable(value[:, :most] + self._log_probabilities(), place))
        return torch.cat((keys.topk(wanted, 1).values.flatten(), torch.stack((tie, wrong)).long())).cpu()

    def _keys_of_all(self, logs: Tensor, wanted: int) -> Tensor:
        """The same by a look at every symbol, so that ties are ranked by symbol whichever way a device finds the
        largest."""
        places = torch.arange(self.options.beam * logs.shape[1], device=logs.device)
        return _sortable(self._by_sentence(logs + self._log_probabilities()), places).topk(wanted, 1).values.flatten().cpu()

    def _by_sentence(self, x: Tensor) -> Tensor:
        """Of rows ``[rows, n]`` those of each sentence beside each other, ``[sentences, beam n]``."""
        return x.reshape(len(self.sentences), self.options.beam * x.shape[1])

    @staticmethod
    def _candidates(keys: Tensor, vocabulary: int) -> list[list[tuple[float, int, int]]]:
        order = (keys >> 32).int()
        scores = (order ^ ((order >> 31) & _ALL_BUT_SIGN)).view(torch.float32).tolist()
        places = (_LOW_BITS - (keys & _LOW_BITS)).tolist()
        return [
            [(score, *divmod(place, vocabulary)) for score, place in zip(*pair, strict=True) if score > -math.inf]
            for pair in zip(scores, places, strict=True)
        ]

    def _log_probabilities(self) -> Tensor:
        """The log-probabilities of all rows, ``[rows, 1]``."""
        beam, values = self.options.beam, []
        for sentence in self.sentences:
            values += [log_probability for _, log_probability in sentence.live]
            values += [-math.inf] * (beam - len(sentence.live))
        return torch.tensor(values, dtype=torch.float32, device=self.device).unsqueeze(1)

    def _grow(self, sentence: _Sentence, found: list[tuple[float, int, int]], length: int) -> list[int]:
        """Complete hypotheses join the best, the likeliest others replace the live ones, whose parents are returned."""
        options, parents = self.options, []
        live: list[tuple[list[int], float]] = []
        for log_probability, row, symbol in found:
            tokens = sentence.live[row][0]
            if symbol == self.end:
                score = log_probability / length_penalty(length, options.alpha)
                place = bisect_right([-other.score for other in sentence.best], -score)
                sentence.best.insert(place, Hypothesis(tokens, log_probability, score))
                del sentence.best[options.n_best :]
            elif len(live) < options.beam:
                live.append(([*tokens, symbol], log_probability))
                parents.append(row)
        sentence.live = live
        return parents + [0] * (options.beam - len(parents))

    def _is_done(self, sentence: _Sentence) -> bool:
        """Whether no live hypothesis can come among the best: more symbols make it no likelier, and none has a larger
        penalty than the longest translation."""
        options = self.options
        if not sentence.live or (options.beam == 1 and sentence.best):
            return True
        if len(sentence.best) < options.n_best:
            return False
        return sentence.best[-1].score >= sentence.live[0][1] / length_penalty(sentence.longest, options.alpha)

    def _extend(self, parents: list[list[int]], length: int) -> None:
        """Removes finished sentences; the rows of the others continue from their parents."""
        beam, stay, numbers, rows = self.options.beam, [], [], []
        self.last = []
        for number, sentence in enumerate(self.sentences):
            if sentence.longest <= length or self._is_done(sentence):
                self.results[sentence.number] = sentence.best
                continue
            stay.append(sentence)
            numbers.append(number)
            rows += [number * beam + parent for parent in parents[number]]
            self.last += [tokens[-1] for tokens, _ in sentence.live] + [self.end] * (beam - len(sentence.live))
        all_stay = len(stay) == len(self.sentences)
        self.sentences = stay
        if stay and rows != list(range(len(parents) * beam)):
            chosen = None if all_stay else torch.tensor(numbers, device=self.device)
            self.decoder.select(torch.tensor(rows, device=self.device), chosen)


def _sortable(scores: Tensor, places: Tensor) -> Tensor:
    """Scores, with the places of their symbols among all of a sentence's, as integers that are all different: in the
    order of the scores, then of the places from the last to the first. So the largest are well defined."""
    bits = scores.view(torch.int32)
    order = bits ^ ((bits >> 31) & _ALL_BUT_SIGN)
    return (order.long() << 32) | (_LOW_BITS - places)
