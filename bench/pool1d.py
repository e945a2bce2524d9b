"""How fast pool1d is beside what a PyTorch user would write, and that its cost is linear in the sequence length.

Both sides run in this process on the same float32 tensors, on all cores, in turns; every time is a median. The other
side is the formula of peers.py, eagerly and under torch.compile. Prints markdown.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

import contextpool
import peers
from measure import machine, medians_ms, memory, print_table

sys.path.append(str(Path(__file__).parents[1] / "tests/python"))
from pool1d_cases import weights

LENGTHS = (256, 577, 1024, 2048, 8192)
LONG_LENGTHS = (131072, 1048576)
FEW_TARGETS = (1, 16, 256)
CHANNELS, LONG_CHANNELS = 256, 64
Pool = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def step(pool: Pool, x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool) -> Callable[[], None]:
    """Forward and backward as one call."""
    leaves = [t.clone().requires_grad_() for t in (x, log_weight, sigma)]
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(pool(*leaves, causal), leaves, dy)


def error(x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool, targets: int = 64) -> float:
    """Largest error of y at sampled targets against the formula in float64, in units of max |x|."""
    y = contextpool.pool1d(x, log_weight, sigma, causal)
    n = x.shape[1]
    i = torch.linspace(0, n - 1, min(n, targets)).long()
    exact = (weights(log_weight.double(), sigma[:, i].double(), causal, i) @ x.double())[0]
    return ((y[0, i].double() - exact).abs().max() / x.abs().max()).item()


def compare(lengths: Iterable[int], seconds: float) -> Iterable[list[str]]:
    sides: list[Pool] = [contextpool.pool1d, peers.pool1d, peers.compiled_pool1d]
    cases = [(n, "0.1 N s", causal) for n in lengths for causal in (False, True)]
    cases += [(max(lengths), "0.5..16", causal) for causal in (False, True)]
    for n, sizes, causal in cases:
        x, log_weight, sigma = peers.rows(1, n, CHANNELS)
        if sizes == "0.5..16":
            sigma = 0.5 * 32 ** torch.rand(sigma.shape, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            forward = medians_ms(*(lambda f=f: f(x, log_weight, sigma, causal) for f in sides), seconds=seconds)
        both = medians_ms(*(step(f, x, log_weight, sigma, causal) for f in sides), seconds=seconds)
        ratios = [f"{other / both[0]:.1f}" for other in both[1:]]
        yield [f"{n}", sizes, "yes" if causal else "no", *(f"{ms:.2f}" for ms in forward + both), *ratios,
               f"{error(x, log_weight, sigma, causal):.0e}"]  # fmt: skip


def few_targets(n: int, seconds: float) -> Iterable[list[str]]:
    """The last targets of a long row, as in decoding."""
    x, log_weight, _ = peers.rows(1, n, LONG_CHANNELS)
    for size in (40.0, 0.1 * n):
        for targets in FEW_TARGETS:
            sigma = torch.full((1, targets), size)
            with torch.no_grad():
                (ms,) = medians_ms(lambda: contextpool.pool1d(x, log_weight, sigma, True), seconds=seconds)
            yield [f"{n}", f"{size:g}", f"{targets}", f"{ms:.3f}"]


def long_sequence(n: int, causal: bool, seconds: float) -> dict[str, float]:
    """One length, in a process of its own so that the peak is its own."""
    step(contextpool.pool1d, *peers.rows(1, 4096, LONG_CHANNELS), causal)()  # starts threads
    inputs = peers.rows(1, n, LONG_CHANNELS)
    run = step(contextpool.pool1d, *inputs, causal)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from here
    run()
    extra = memory("VmHWM") - before
    with torch.no_grad():
        (forward,) = medians_ms(lambda: contextpool.pool1d(*inputs, causal), seconds=seconds)
    (both,) = medians_ms(run, seconds=seconds)
    return {"forward": forward, "both": both, "extra": extra / inputs[0].nbytes}


def scale(lengths: Iterable[int], arguments: list[str]) -> Iterable[list[str]]:
    for causal in (False, True):
        first = None
        for n in lengths:
            command = [sys.executable, __file__, *arguments, "--one", f"{n}", *(["--causal"] if causal else [])]
            r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            per_token = 1e6 * r["both"] / n
            first = first or per_token
            yield [f"{n}", "yes" if causal else "no", f"{r['forward']:.0f}", f"{r['both']:.0f}", f"{per_token:.0f}",
                   f"{per_token / first:.2f}", f"{r['extra']:.1f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences, few repetitions")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help=f"instead of {LENGTHS}")
    parser.add_argument("--long-lengths", type=int, nargs="*", metavar="N", help=f"instead of {LONG_LENGTHS}")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--causal", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    seconds = 0.2 if args.quick else 1.0
    if args.one:
        print(json.dumps(long_sequence(args.one, args.causal, seconds)))
        return

    lengths = args.lengths or (LENGTHS[:3] if args.quick else LENGTHS)
    long_lengths = args.long_lengths
    if long_lengths is None:
        long_lengths = [n // 8 for n in LONG_LENGTHS] if args.quick else LONG_LENGTHS
    print(f"\n{machine()}; medians.\n")
    print(f"B 1, D {CHANNELS}; milliseconds; error of y against float64, in units of max |x|.\n")
    head = ["N", "sigma", "causal", "forward", "eager", "compile", "fwd+bwd", "eager", "compile",
            "faster than eager", "faster than compile", "error"]  # fmt: skip
    print_table(head, compare(lengths, seconds))
    if long_lengths:
        print(f"\nB 1, D {LONG_CHANNELS}, sigma 0.1 N s: cost per token, and peak extra memory of fwd+bwd.\n")
        head = ["N", "causal", "forward ms", "fwd+bwd ms", "ns per token", "ratio to the first", "memory / size of x"]
        print_table(head, scale(long_lengths, ["--quick"] if args.quick else []))
        print(f"\nB 1, D {LONG_CHANNELS}, causal: the last targets of a row, forward.\n")
        print_table(["N", "sigma", "targets", "ms"], few_targets(min(long_lengths), seconds))


if __name__ == "__main__":
    main()
