"""The options of ContextPool: their checks, and what they mean for the parts of the module."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from ._option_table import WORDS, OptionTable

LARGEST_START = 0.5  # of ratio * length


@dataclass(frozen=True, kw_only=True)
class Options(OptionTable):
    """What ContextPool1d and ContextPool2d have in common."""

    who: str

    def __post_init__(self) -> None:
        for option, words in WORDS.items():
            check_word(self.who, option, getattr(self, option), words)
        for option in ("ratio", "initial_sigma", "size_range"):
            self._check(not math.isinf(getattr(self, option)), f"{option} must be finite, but is {getattr(self, option)}")
        for option in ("features", "ratio", "usual_length", "initial_sigma", "hidden", "kernel"):
            self._check(getattr(self, option) > 0, f"{option} must be positive, but is {getattr(self, option)}")
        for option in ("reference_length", "size_range", "window"):
            self._check(getattr(self, option) >= 0, f"{option} must not be negative, but is {getattr(self, option)}")
        self._check(
            0 <= self.size_floor < 1,
            f"size_floor must be a share of initial_sigma, from 0 to less than 1, but is {self.size_floor}",
        )
        self._check(
            self.groups > 0 and self.features % self.groups == 0,
            f"groups must divide the {self.features} features, but is {self.groups}",
        )
        self._check_combination()

    def _check(self, good: bool, message: str) -> None:
        if not good:
            raise ValueError(f"{self.who}: {message}")

    def _check_combination(self) -> None:
        self._check(
            self.causal or self.kernel % 2 == 1,
            f"kernel must be odd to look as far back as ahead, but is {self.kernel}",
        )
        self._check(
            not self.causal or self.reference_length > 0,
            "causal needs reference_length: the length of a row is not known before its end, so its own length would "
            "tell of the future; set it to the usual length of the model's rows",
        )
        self._check(
            not self.causal or self.size_norm != "softmax",
            'size_norm "softmax" divides by a sum over the whole row, later tokens too, so it cannot be causal; use '
            '"sigmoid" or "channels"',
        )
        if self.pairwise_weights:
            self._check(
                self.groups == 1,
                'weights "nonlocal" compare whole tokens, so they cannot differ by group; set groups to 1',
            )
            self._check(
                self.predictor != "mlp",
                'weights "nonlocal" are another name of predictor "attention", so predictor cannot be "mlp"; leave it '
                'at "conv"',
            )
            self._check(
                self.weights in ("softmax", "nonlocal"),
                'predictor "attention" gives the weights "nonlocal", so weights cannot be '
                f'"{self.weights}"; leave it at "softmax"',
            )
        weights = "nonlocal" if self.pairwise_weights else self.weights
        self._check(
            self.size_norm != "channels" or self.predicts_weights,
            f'size_norm "channels" is a softmax over a token\'s weight and size, but weights "{weights}" are not '
            'predicted for a token; use "sigmoid"',
        )

    @property
    def pairwise_weights(self) -> bool:
        """Weights "nonlocal" and predictor "attention" are two names of one thing."""
        return self.predictor == "attention" or self.weights == "nonlocal"

    @property
    def predicts_weights(self) -> bool:
        return not self.pairwise_weights and self.weights != "uniform"

    @property
    def predicts_sizes(self) -> bool:
        return self.locality in ("gaussian", "adaptive_window")

    @property
    def channels(self) -> int:
        """How many channels the predictor gives: the weights of the groups, then their sizes."""
        return self.groups * (self.predicts_weights + self.predicts_sizes)

    @property
    def bounded_sizes(self) -> bool:
        """Whether sizes stay above smallest_size and within size_range of the learnt one; else they are the paper's."""
        return self.size_range > 0 and self.size_norm == "sigmoid"

    @property
    def smallest_size(self) -> float:
        """Bounded sizes stay above this: a window that closes on its own token has no gradient left to open again."""
        return self.size_floor * self.initial_sigma

    @property
    def smallest_limit(self) -> float:
        """Bounded sizes have at least this limit, so that initial_sigma holds on the shortest rows too."""
        return 2 * self.initial_sigma

    @property
    def reference_limit(self) -> float:
        """The largest size at reference_length."""
        limit = self.ratio * self.reference_length
        return max(limit, self.smallest_limit) if self.bounded_sizes else limit

    def size_map(self, length: float) -> dict[str, float]:
        """How the size channels of a row of that length become sizes, as ops.predict_windows takes it; with size_norm
        "sigmoid"."""
        limit = self.ratio * length
        if not self.bounded_sizes:
            return {"size_range": 0.0, "shift": 0.0, "least": 0.0, "span": limit}
        start, least, largest = self.initial_sigma, self.smallest_size, max(limit, self.smallest_limit)
        shift = math.log((start - least) / (largest - start))
        return {"size_range": self.size_range, "shift": shift, "least": least, "span": largest - least}

    @property
    def size_bias(self) -> float:
        """The bias of the size channel with which initial_sigma holds."""
        if self.size_norm == "softmax" or self.bounded_sizes:
            return 0.0
        share = min(self.initial_sigma / (self.ratio * (self.reference_length or self.usual_length)), LARGEST_START)
        return math.log(share / (1 - share))

    def __str__(self) -> str:
        hidden = ("who", "usual_length", "window", "seed", "layer")
        return ", ".join(f"{name}={value}" for name, value in vars(self).items() if name not in hidden)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The known word that is near to this one, as the end of a message; empty where none is."""
    near = get_close_matches(str(word), list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def check_word(who: str, option: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        expected = ", ".join(known)
        raise ValueError(f'{who}: {option} is "{word}", expected one of {expected}{did_you_mean(word, known)}')
