"""The operator of the dynamic mixer beside the same by PyTorch's operators: milliseconds, and how much of the processor.

Per shape, on the same tensors, taking turns: ours (contextpool.ops.dynamic_convolution) and shifts (a sum of K shifted
products, each with a linear product for its coefficients), causal, with a residual. A token and channel take K (r + 1)
multiply-adds forward and K (3 r + 2) backward, K taps of rank r; a multiply-add is two operations. "of a
matrix product" compares the operations per second with those of torch.mm of 1024 x 1024 in float32. Times are of the
processor, one thread, the shortest of many, so that other load on the machine matters little.

    python bench/dynamic_convolution.py [--taps 4] [--rank 15] [--dtype float32] [--seconds 1] [--quick]
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from contextpool.ops import dynamic_convolution
from measure import Call, machine, print_table, shortest_ms

SHAPES = ((4, 2048, 512), (1, 128, 96), (16, 128, 64), (1, 32768, 64))
Mix = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def ours(x: Tensor, inner: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    return dynamic_convolution(x, inner, up, weight, weight.shape[1] - 1, True)


def shifts(x: Tensor, inner: Tensor, up: Tensor, weight: Tensor) -> Tensor:
    taps, tokens = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    y = x
    for k in range(taps):
        y = y + F.linear(inner, up[k], weight[:, k]).to(x.dtype) * padded[:, k : k + tokens]
    return y


def forward(mix: Mix, inputs: tuple[Tensor, ...]) -> Call:
    def call() -> None:
        with torch.no_grad():
            mix(*inputs)

    return call


def both(mix: Mix, inputs: tuple[Tensor, ...], dy: Tensor) -> Call:
    return lambda: torch.autograd.grad(mix(*inputs), inputs, dy)


def rows_of(shape: tuple[int, int, int], options: argparse.Namespace) -> list[tuple[str, ...]]:
    dtype = getattr(torch, options.dtype)
    batch, tokens, channels = shape
    shapes = (shape, (batch, tokens, options.rank), (options.taps, channels, options.rank), (channels, options.taps))
    inputs = tuple(torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    dy = torch.randn(shape, dtype=dtype)
    calls = [forward(mix, inputs) for mix in (ours, shifts)] + [both(mix, inputs, dy) for mix in (ours, shifts)]
    times = shortest_ms(*calls, seconds=options.seconds)
    elements = batch * tokens * channels
    work = 2 * elements * options.taps * (options.rank + 1), 2 * elements * options.taps * (4 * options.rank + 3)
    return [
        (
            " x ".join(map(str, shape)),
            name,
            f"{times[i]:.3f}",
            f"{work[0] / times[i] / 1e6:.0f}",
            f"{times[2 + i]:.3f}",
            f"{work[1] / times[2 + i] / 1e6:.0f}",
        )
        for i, name in enumerate(("ours", "shifts"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taps", type=int, default=4)
    parser.add_argument("--rank", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="the smallest shape alone: to see that it works")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[tuple[str, ...]] = [row for shape in (SHAPES[1:2] if options.quick else SHAPES) for row in rows_of(shape, options)]
    print(machine().replace("float32", options.dtype) + f", {options.taps} taps of rank {options.rank}\n")
    square = torch.randn(1024, 1024)
    (product,) = shortest_ms(lambda: torch.mm(square, square), seconds=options.seconds)
    rows.append(("1024 x 1024", "torch.mm", f"{product:.3f}", f"{2 * 1024**3 / product / 1e6:.0f}", "", ""))
    print_table(("x", "", "forward ms", "GFLOP/s", "and backward ms", "GFLOP/s"), rows)


if __name__ == "__main__":
    main()
