"""The short convolution of the mixers beside PyTorch's: milliseconds, and how many copies of x they take.

Per shape and peer, on the same tensors, taking turns: ours (contextpool.ops.short_convolution), conv (torch's conv1d
with a group for each channel, and what it takes to lay rows out for it), shifts (a sum of shifted products) and compiled
(the same under torch.compile, with --compile). All with a residual, causal. A copy (clone) reads x and writes y: what a
forward needs at least; a backward reads x and dy and writes dx, so that both need two and a half. With one thread, times
are of the processor and the shortest of many, so that other load on the machine matters little.

With --mixers, the mixers of contextpool.nn as modules instead, causal.

    python bench/short_convolution.py [--threads 1] [--taps 4 15] [--dtype float32] [--compile] [--mixers] [--json FILE]
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from contextpool.nn import MixerOptions, make_mixer
from contextpool.ops import short_convolution
from measure import Call, machine, medians_ms, print_table, shortest_ms

SHAPES = ((4, 2048, 512), (1, 128, 96), (16, 128, 64), (1, 32768, 64))
FORWARD_COPIES, BOTH_COPIES = 1.0, 2.5
POOL = {"reference_length": 256}
MIXERS = {
    "depthwise, 15 taps": ("depthwise", {}),
    "canon": ("canon", {}),
    "dynamic": ("dynamic", {}),
    "dynamic, sum of shifts": ("dynamic", {}),  # by PyTorch's operators, as on a GPU
    "ContextPool": ("context_pool", POOL),
    "ContextPool, 16 groups": ("context_pool", {**POOL, "groups": 16}),
}


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


def both(peer: Call, x: Tensor, weight: Tensor, dy: Tensor) -> Call:
    return lambda: torch.autograd.grad(peer(x, weight), (x, weight), dy)


def rows_of(shape: tuple[int, int, int], taps: int, dtype: torch.dtype, peers: dict, seconds: float) -> list[dict]:
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape[2], taps, dtype=dtype, requires_grad=True)
    dy = torch.randn(shape, dtype=dtype)

    def forward(peer: Call) -> Call:
        def call() -> None:
            with torch.no_grad():
                peer(x, weight)

        return call

    names = list(peers)
    times = (shortest_ms if torch.get_num_threads() == 1 else medians_ms)(
        dy.clone,
        *[forward(peers[name]) for name in names],
        *[both(peers[name], x, weight, dy) for name in names],
        seconds=seconds,
    )
    copy, forwards, boths = times[0], times[1 : 1 + len(names)], times[1 + len(names) :]
    return [
        {
            "shape": shape,
            "taps": taps,
            "peer": name,
            "copy_ms": copy,
            "forward_ms": f,
            "both_ms": b,
            "forward_floors": f / copy / FORWARD_COPIES,
            "both_floors": b / copy / BOTH_COPIES,
        }
        for name, f, b in zip(names, forwards, boths, strict=True)
    ]


def times_of_mixers(shape: tuple[int, int, int], dtype: torch.dtype, seconds: float) -> list[tuple[str, ...]]:
    torch.manual_seed(1)
    x, dy = torch.randn(shape, dtype=dtype, requires_grad=True), torch.randn(shape, dtype=dtype)
    mixers = {
        name: make_mixer(MixerOptions(kind, features=shape[2], causal=True, pool=pool), dtype=dtype)
        for name, (kind, pool) in MIXERS.items()
    }

    setattr(mixers["dynamic, sum of shifts"], "_has_operator", lambda x: False)  # noqa: B010

    def trains(mixer: torch.nn.Module) -> Call:
        return lambda: torch.autograd.grad(mixer(x), (x, *mixer.parameters()), dy)

    times = shortest_ms(*[trains(mixer) for mixer in mixers.values()], seconds=seconds)
    return [(" x ".join(map(str, shape)), name, f"{ms:.2f}") for name, ms in zip(mixers, times, strict=True)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--taps", type=int, nargs="+", default=[4, 15])
    options.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--mixers", action="store_true", help="whole mixers, on one thread")
    options.add_argument("--seconds", type=float, default=1.0)
    options.add_argument("--quick", action="store_true", help="the smallest shape alone: to see that it works")
    options.add_argument("--json", type=Path)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    peers = {"ours": ours, "conv": conv, "shifts": shifts}
    if arguments.compile:
        peers["compiled"] = torch.compile(shifts, dynamic=False)
    shapes = SHAPES[1:2] if arguments.quick else SHAPES
    if arguments.mixers:
        torch.set_num_threads(1)
        rows = [
            row
            for shape in shapes
            for row in times_of_mixers(shape, getattr(torch, arguments.dtype), arguments.seconds)
        ]
        print(machine().replace("float32", arguments.dtype) + "\n")
        print_table(("x", "mixer", "forward and backward ms"), rows)
        return
    results = []
    for shape in shapes:
        for taps in arguments.taps:
            results += rows_of(shape, taps, getattr(torch, arguments.dtype), peers, arguments.seconds)
    print(machine().replace("float32", arguments.dtype) + "\n")
    head = ("x", "taps", "", "copy ms", "forward ms", "times the floor", "and backward ms", "times the floor")
    print_table(
        head,
        (
            (
                " x ".join(map(str, r["shape"])),
                str(r["taps"]),
                r["peer"],
                f"{r['copy_ms']:.4f}",
                f"{r['forward_ms']:.3f}",
                f"{r['forward_floors']:.1f}",
                f"{r['both_ms']:.3f}",
                f"{r['both_floors']:.1f}",
            )
            for r in results
        ),
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
