"""Beam search beside MarianMT of Hugging Face transformers: the same architecture and sizes, random weights, the same
number of symbols for every sentence. Needs the package transformers, which the project itself does not. Prints markdown.

The two sides take turns; a figure is the median of --rounds turns. --check also compares that both sides did the work:
each gives every sentence as many symbols as asked for.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from contextpool.models import Translator
from contextpool.models.beam_search import BeamSearchOptions, beam_search
from contextpool.models.translator import CachedDecoder
from decode import Endless
from measure import machine, print_table

SIZES = {
    "nmt-tiny": {"layers": 2, "features": 128, "heads": 4, "feedforward": 512},
    "nmt-small": {"layers": 2, "features": 256, "heads": 4, "feedforward": 1024},
    "nmt-base": {"layers": 6, "features": 512, "heads": 8, "feedforward": 2048},
    "nmt-big": {"layers": 6, "features": 1024, "heads": 16, "feedforward": 4096},
}


def marian(sizes: dict[str, int], vocabulary: int, longest: int) -> torch.nn.Module:
    try:
        import torchvision  # noqa: F401  transformers imports it where it is there
    except RuntimeError:  # built for another torch: the operators it gives shapes to do not exist
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except ImportError:
        pass
    from transformers import MarianConfig, MarianMTModel

    half = {f"{side}_{name}": sizes[own] for side in ("encoder", "decoder") for name, own in
            (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "feedforward"))}
    return MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary, d_model=sizes["features"], max_position_embeddings=longest + 2, pad_token_id=0,
            eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None, **half,
        )
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=SIZES, default="nmt-base")
    parser.add_argument("--mixer", default="none", help="of our model, as context_pool")
    parser.add_argument("--batch", type=int, nargs="+", default=[64], help="sentences at once")
    parser.add_argument("--length", type=int, default=30, help="symbols of a source and of a translation")
    parser.add_argument("--vocabulary", type=int, default=32000, help="symbols")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    kind = {"device": o.device, "dtype": getattr(torch, o.dtype)}
    ours = Translator.from_options({**SIZES[o.model], "vocabulary": o.vocabulary, "mixer": o.mixer}).eval().to(**kind)
    theirs = marian(SIZES[o.model], o.vocabulary, o.length).eval().to(**kind)

    def translate(source: torch.Tensor) -> list[int]:
        decoder = Endless(CachedDecoder(ours, ours.encode(source), o.beam), ours.options.end)
        options = BeamSearchOptions(o.beam)
        found = beam_search(
            decoder, [o.length + 1] * len(source), ours.options.begin, ours.options.end, options, o.device
        )
        return [len(best[0].tokens) for best in found]

    def generate(source: torch.Tensor) -> list[int]:
        found = theirs.generate(
            source, attention_mask=torch.ones_like(source), num_beams=o.beam, length_penalty=0.6, do_sample=False,
            min_new_tokens=o.length, max_new_tokens=o.length,
        )  # fmt: skip
        return [len(row) - 1 for row in found]

    def seconds(side: Callable[[torch.Tensor], list[int]], source: torch.Tensor) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            lengths = side(source)
        if source.is_cuda:
            torch.cuda.synchronize()
        took = time.perf_counter() - start
        assert lengths == [o.length] * len(source), "not every sentence has as many symbols as asked for"
        return took

    where = torch.cuda.get_device_name() if o.device.startswith("cuda") else machine()
    print(f"{o.model}, mixer {o.mixer}, {o.length} symbols, beam {o.beam}, {o.dtype}; {where}", end="\n\n")
    rows = []
    for batch in o.batch:
        source = torch.randint(3, o.vocabulary, (batch, o.length), device=o.device)
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(o.rounds + 1):
            times["ours"].append(seconds(translate, source))
            times["theirs"].append(seconds(generate, source))
        mine, other = (statistics.median(times[side][1:]) for side in ("ours", "theirs"))  # the first warms up
        rows.append([f"{batch}", f"{batch / mine:.1f}", f"{batch / other:.1f}", f"{other / mine:.2f}"])
    print_table(["sentences at once", "ours, sentences/s", "MarianMT, sentences/s", "times faster"], rows)


if __name__ == "__main__":
    main()
