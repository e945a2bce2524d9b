"""How much faster a translator decodes with its caches than by running over all symbols so far at every step.

Beam search of random weights of nmt-small's size, whose end symbol is kept from coming early, so that every sentence is
as long as asked for. Two baselines: "last" computes the logits of the last symbol only, "all" those of every symbol, as
a plain forward pass does. All sides give the same translations, which is checked. Prints markdown.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from contextpool.models import Translator
from contextpool.models.beam_search import BeamDecoder, BeamSearchOptions, beam_search
from contextpool.models.translator import CachedDecoder, UncachedDecoder
from measure import machine, print_table

SIZES = {"layers": 2, "features": 256, "heads": 4, "feedforward": 1024}


class Endless(BeamDecoder):
    """A decoder that never ends by itself."""

    def __init__(self, decoder: BeamDecoder, end: int) -> None:
        self.decoder, self.end = decoder, end

    def step(self, tokens: Tensor) -> Tensor:
        logits = self.decoder.step(tokens)
        logits[:, self.end] = -1e4
        return logits

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        self.decoder.select(rows, sentences)


class All(UncachedDecoder):
    """Computes what it does not need, as a forward pass does."""

    def step(self, tokens: Tensor) -> Tensor:
        fresh = tokens.unsqueeze(1)
        self.target = fresh if self.target.numel() == 0 else torch.cat((self.target, fresh), 1)
        return self.model.decode(self.target, self.source)[:, -1].clone()


def timed(model: Translator, kind: Callable[..., BeamDecoder], source: Tensor, length: int, beam: int) -> tuple:
    start = time.perf_counter()
    with torch.inference_mode():
        decoder = Endless(kind(model, model.encode(source), beam), model.options.end)
        found = beam_search(
            decoder, [length] * len(source), model.options.begin, model.options.end, BeamSearchOptions(beam)
        )
    return time.perf_counter() - start, [one[0].tokens for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--batch", type=int, default=16, help="sentences")
    parser.add_argument("--length", type=int, default=100, help="symbols of a source and of a translation")
    parser.add_argument("--vocabulary", type=int, default=8000, help="symbols")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--mixer", default="none", help="of the model, as context_pool")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="also the second baseline, which takes long")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    sizes = {**SIZES, "vocabulary": options.vocabulary, "mixer": options.mixer}
    model = Translator.from_options(sizes).eval()
    source = torch.randint(3, options.vocabulary, (options.batch, options.length))
    print(machine(), end="\n\n")
    rows = []
    for beam in options.beams:
        timed(model, CachedDecoder, source, 5, beam)
        cached, expected = timed(model, CachedDecoder, source, options.length, beam)
        row = [f"{beam}", f"{cached:.2f}"]
        for kind in (UncachedDecoder, All) if options.all else (UncachedDecoder,):
            uncached, found = timed(model, kind, source, options.length, beam)
            assert found == expected, "the two sides translate differently"
            row += [f"{uncached:.2f}", f"{uncached / cached:.1f}"]
        rows.append(row)
    header = ["beam", "cached, s", "last, s", "ratio"] + (["all, s", "ratio"] if options.all else [])
    print_table(header, rows)


if __name__ == "__main__":
    main()
