"""The dynamic convolution of the mixers on a GPU beside the same by PyTorch's operators: milliseconds.

    python3 bench/cuda/dynamic_convolution.py [--quick] [--taps 4] [--rank 15] [--dtype bfloat16] [--json FILE]

Per shape, causal with a residual, on the same tensors, taking turns: ours (contextpool.ops.dynamic_convolution), shifts
(a sum of K shifted products, each with a linear product for its coefficients), and compiled (shifts under
torch.compile). Times of the forward, and of forward and backward (of all four inputs), are medians. A token and channel
take K (r + 1) multiply-adds forward and K (3 r + 2) backward, K taps of rank r; a multiply-add is two operations. A
floor is what must move (x and y; x, dy and dx in the backward) at the rate of a copy measured in the same run.
"""

import argparse
import json
from pathlib import Path

import torch
from stopwatch import Step, copy_rate, medians_ms
from torch import Tensor
from torch.nn import functional as F

from contextpool.ops import dynamic_convolution

SHAPES = ((16, 2048, 512), (32, 1024, 512), (4, 2048, 512), (256, 128, 96))


def ours(x: Tensor, inner: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    return dynamic_convolution(x, inner, up, weight, weight.shape[1] - 1, True)


def shifts(x: Tensor, inner: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    taps, tokens = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    y = x
    for k in range(taps):
        y = y + F.linear(inner, up[k], weight[:, k]) * padded[:, k : k + tokens]
    return y


def both(mix: Step, inputs: list[Tensor], dy: Tensor) -> Step:
    return lambda: torch.autograd.grad(mix(*inputs), inputs, dy)


def forward(mix: Step, inputs: list[Tensor]) -> Step:
    def call() -> None:
        with torch.no_grad():
            mix(*inputs)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--taps", type=int, default=4)
    parser.add_argument("--rank", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dtype, taps, rank = getattr(torch, options.dtype), options.taps, options.rank
    rate, results = copy_rate(), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {dtype}, {taps} taps of rank {rank}, "
          f"copy {rate / 1e9:.2f} TB/s\n")  # fmt: skip
    head = ["x", "", "forward ms", "floors", "TFLOP/s", "and backward ms", "floors", "TFLOP/s"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for shape in SHAPES:
        peers = {"ours": ours, "shifts": shifts, "compiled": torch.compile(shifts, dynamic=False)}
        batch, tokens, channels = shape
        shapes = (shape, (batch, tokens, rank), (taps, channels, rank), (channels, taps))
        inputs = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]
        x, dy = inputs[0], torch.randn(shape, device="cuda", dtype=dtype)
        calls = [forward(peer, inputs) for peer in peers.values()] + [both(peer, inputs, dy) for peer in peers.values()]
        times = medians_ms(*calls, count=10 if options.quick else 50)
        floors = 2 * x.nbytes / rate, 5 * x.nbytes / rate
        work = 2 * x.numel() * taps * (rank + 1), 2 * x.numel() * taps * (4 * rank + 3)
        for name, one, two in zip(peers, times, times[len(peers) :], strict=False):
            results.append({"shape": shape, "peer": name, "forward_ms": one, "both_ms": two,
                            "forward_floors": one / floors[0], "both_floors": two / floors[1]})  # fmt: skip
            print(f"| {' x '.join(map(str, shape))} | {name} | {one:.3f} | {one / floors[0]:.1f} | {work[0] / one / 1e9:.1f} "
                  f"| {two:.3f} | {two / floors[1]:.1f} | {work[1] / two / 1e9:.1f} |", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
