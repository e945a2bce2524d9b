"""The short convolution of the mixers on a GPU beside PyTorch's: milliseconds, and how many times the memory they must move.

    python3 bench/cuda/short_convolution.py [--quick] [--check] [--taps 4 15] [--dtype bfloat16] [--parts] [--json FILE]

Per shape, causal with a residual, on the same tensors, taking turns: ours (contextpool.ops.short_convolution), conv
(torch's conv1d with a group for each channel, and what it takes to lay rows out for it), compiled (a sum of shifted
products under torch.compile). Times of the forward, and of forward and backward (of x and weight), are medians. A floor
is what must move (x and y; x, dy and dx in the backward) at the rate of a copy measured in the same run.

First, results and gradients are compared with conv1d in float64; exit status 1 on a miss. --check: nothing else.
--parts: microseconds of each kernel (PyTorch's profiler), and which share of the floor's rate it reaches.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from stopwatch import Step, copy_rate, medians_ms
from torch import Tensor
from torch.nn import functional as F

from contextpool.ops import short_convolution

SHAPES = ((16, 8192, 512), (4, 2048, 512), (16, 1024, 1024), (256, 128, 512), (1, 131072, 512), (1, 128, 96))
CHECKS = ((2, 203, 136), (3, 1000, 37), (1, 7, 8))
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of the largest value


def ours(x: Tensor, weight: Tensor) -> Tensor:
    return short_convolution(x, weight, None, weight.shape[1] - 1, True)


def conv(x: Tensor, weight: Tensor) -> Tensor:
    rows = F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    return x + F.conv1d(rows, weight.unsqueeze(1), groups=x.shape[2]).transpose(1, 2)


def shifts(x: Tensor, weight: Tensor) -> Tensor:
    taps, tokens = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    y = x
    for k in range(taps):
        y = y + weight[:, k] * padded[:, k : k + tokens]
    return y


def inputs(shape: tuple[int, ...], taps: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    weight = (torch.randn(shape[-1], taps, device="cuda") / taps**0.5).to(dtype).requires_grad_()
    return x, weight, torch.randn(shape, device="cuda", dtype=dtype)


def misses() -> int:
    """How many results are further from conv1d in float64 than rounding; each is printed."""
    count = 0
    for dtype, bound in BOUNDS.items():
        for shape in CHECKS:
            for taps in (1, 3, 4, 7, 15, 31, 40):
                x, weight, dy = inputs(shape, taps, dtype)
                in_float64 = [t.detach().double().requires_grad_() for t in (x, weight)]
                got = [y := ours(x, weight), *torch.autograd.grad(y, (x, weight), dy)]
                want = [y := conv(*in_float64), *torch.autograd.grad(y, in_float64, dy.double())]
                for name, a, b in zip(("y", "dx", "dweight"), got, want, strict=True):
                    error = ((a.double() - b).abs().max() / b.abs().max()).item()
                    if not error <= bound:
                        print(f"{name} of {shape}, {taps} taps, {dtype}: {error:.1e} of the largest value")
                        count += 1
    return count


def both(peer: Step, x: Tensor, weight: Tensor, dy: Tensor) -> Step:
    return lambda: torch.autograd.grad(peer(x, weight), (x, weight), dy)


def forward(peer: Step, x: Tensor, weight: Tensor) -> Step:
    def call() -> None:
        with torch.no_grad():
            peer(x, weight)

    return call


def table(taps_of: list[int], dtype: torch.dtype, count: int, target: Path | None) -> None:
    rate, results = copy_rate(), []
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {dtype}, copy {rate / 1e9:.2f} TB/s\n")
    head = ["x", "taps", "", "forward ms", "times the floor", "and backward ms", "times the floor"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for shape in SHAPES:
        for taps in taps_of:
            peers = {"ours": ours, "conv1d": conv, "compiled": torch.compile(shifts, dynamic=False)}
            x, weight, dy = inputs(shape, taps, dtype)
            calls = [forward(peer, x, weight) for peer in peers.values()]
            calls += [both(peer, x, weight, dy) for peer in peers.values()]
            times = medians_ms(*calls, count=count)
            floors = 2 * x.nbytes / rate, 5 * x.nbytes / rate
            for name, one, two in zip(peers, times, times[len(peers) :], strict=False):
                row = {"shape": shape, "taps": taps, "peer": name, "forward_ms": one, "both_ms": two,
                       "forward_floors": one / floors[0], "both_floors": two / floors[1]}  # fmt: skip
                results.append(row)
                print(f"| {' x '.join(map(str, shape))} | {taps} | {name} | {one:.3f} | {row['forward_floors']:.1f} "
                      f"| {two:.3f} | {row['both_floors']:.1f} |", flush=True)  # fmt: skip
    if target:
        target.write_text(json.dumps(results, indent=1) + "\n")


def parts(taps_of: list[int], dtype: torch.dtype) -> None:
    from torch.profiler import ProfilerActivity, profile

    for shape in SHAPES[:2]:
        for taps in taps_of:
            x, weight, dy = inputs(shape, taps, dtype)
            call = both(ours, x, weight, dy)
            for _ in range(3):
                call()
            with profile(activities=[ProfilerActivity.CUDA]) as trace:
                for _ in range(5):
                    call()
                torch.cuda.synchronize()
            print("--", shape, taps, "taps")
            for event in sorted(trace.key_averages(), key=lambda e: -e.device_time_total):
                if event.device_time_total > 0:
                    print(f"{event.device_time_total / 5:9.1f}  {event.key[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--check", action="store_true", help="results only")
    parser.add_argument("--parts", action="store_true", help="microseconds of each kernel")
    parser.add_argument("--taps", type=int, nargs="+", default=[4, 15])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dtype = getattr(torch, arguments.dtype)
    if count := misses():
        print(f"{count} results are not conv1d's", file=sys.stderr)
        sys.exit(1)
    if arguments.parts:
        parts(arguments.taps, dtype)
    elif not arguments.check:
        table(arguments.taps, dtype, 10 if arguments.quick else 50, arguments.json)


if __name__ == "__main__":
    main()
