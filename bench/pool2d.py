"""How fast pool2d is beside what a PyTorch user would write, and how much memory it takes on a large map.

Both sides run in this process on the same float32 tensors, on all cores, turn by turn; every time is a median. The
other side is the formula written densely: weights [B, targets, pixels] by a softmax, times the features. Prints
markdown.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import contextpool
import torch
from torch import Tensor

Pool = Callable[[Tensor, Tensor, Tensor, int], Tensor]
# batch, channels, side, stride
CASES = ((8, 64, 56, 1), (8, 64, 56, 2), (8, 128, 28, 1), (8, 256, 14, 1))
LARGE = (1, 64, 112, 1)
RATIO = 0.05  # of the side: the largest sigma


def dense(x: Tensor, log_weight: Tensor, sigma: Tensor, stride: int) -> Tensor:
    height, width = x.shape[2:]
    i, j = torch.arange(height), torch.arange(width)
    d2 = (i[::stride, None] - i).square()[:, None, :, None] + (j[::stride, None] - j).square()[None, :, None, :]
    d2 = d2.reshape(sigma.shape[1] * sigma.shape[2], height * width).to(x.dtype)
    score = log_weight.flatten(1)[:, None, :] - d2 / (2 * sigma.flatten(1)[..., None].square())
    y = torch.softmax(score, -1) @ x.flatten(2).transpose(1, 2)
    return y.transpose(1, 2).reshape(*x.shape[:2], *sigma.shape[1:])


def pool(x: Tensor, log_weight: Tensor, sigma: Tensor, stride: int) -> Tensor:
    return contextpool.pool2d(x, log_weight, sigma, (stride, stride))


def inputs(batch: int, channels: int, side: int, stride: int, channels_last: bool = False) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    targets = -(-side // stride)
    x = torch.randn(batch, channels, side, side, generator=g)
    sigma = RATIO * side * torch.rand(batch, targets, targets, generator=g) + 0.05
    log_weight = torch.randn(batch, side, side, generator=g)
    return [x.contiguous(memory_format=torch.channels_last) if channels_last else x, log_weight, sigma]


def step(f: Pool, tensors: list[Tensor], stride: int) -> Callable[[], None]:
    """Forward and backward as one call."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    shape = (*tensors[0].shape[:2], *tensors[2].shape[1:])
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(f(*leaves, stride), leaves, dy)


def medians(calls: list[Callable[[], object]], repetitions: int) -> list[float]:
    """Milliseconds of each call, taken in turns so that other load falls on all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for k in range(repetitions + 1):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if k > 0:  # the first is a warm-up
                taken.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(t) for t in times]


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    head = list(head)
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def compare(repetitions: int) -> Iterable[list[str]]:
    for batch, channels, side, stride in CASES:
        tensors = inputs(batch, channels, side, stride)
        last = inputs(batch, channels, side, stride, channels_last=True)
        with torch.no_grad():
            forward = medians([lambda: pool(*tensors, stride), lambda: dense(*tensors, stride)], repetitions)
            difference = (pool(*tensors, stride) - dense(*tensors, stride)).abs().max() / tensors[0].abs().max()
        sides = (step(pool, tensors, stride), step(pool, last, stride), step(dense, tensors, stride))
        both = medians(list(sides), repetitions)
        yield [f"{batch} x {channels} x {side} x {side}", f"{stride}", *(f"{ms:.1f}" for ms in forward + both),
               f"{forward[1] / forward[0]:.1f}", f"{both[2] / both[0]:.1f}", f"{difference:.0e}"]  # fmt: skip


def memory(field: str) -> int:
    """Bytes of resident memory: now (VmRSS) or at the highest (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def large(channels_last: bool, wide: bool) -> dict[str, float]:
    """One map of LARGE, in a process of its own so that the peak is its own."""
    step(pool, inputs(1, 8, 32, 1), 1)()  # starts threads
    tensors = inputs(*LARGE, channels_last)
    if wide:  # every window reaches beyond the map
        tensors[2] += LARGE[2]
    run = step(pool, tensors, 1)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from here
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"ms": 1e3 * seconds, "extra": (memory("VmHWM") - before) / tensors[0].nbytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--large", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.large:
        print(json.dumps(large(*(v == "yes" for v in args.large))))
        return
    model = next((s.split(":")[1].strip() for s in open("/proc/cpuinfo") if s.startswith("model name")), "CPU")
    print(f"\nfloat32, {torch.get_num_threads()} threads of {model}, torch {torch.__version__}; medians.\n")
    print(f"sigma uniform up to {RATIO} of the side; milliseconds; difference of the two y in units of max |x|.\n")
    head = ["map", "stride", "forward", "dense", "fwd+bwd", "channels last", "dense", "forward faster",
            "fwd+bwd faster", "difference"]  # fmt: skip
    print_table(head, compare(3 if args.quick else 9))
    print(f"\n{' x '.join(map(str, LARGE[:3]))} x {LARGE[2]}: forward and backward once; extra memory at its peak.\n")
    rows = []
    for channels_last in ("no", "yes"):
        for wide in ("no", "yes"):
            command = [sys.executable, __file__, "--large", channels_last, wide]
            r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append([channels_last, wide, f"{r['ms']:.0f}", f"{r['extra']:.1f}"])
    print_table(["channels last", "windows beyond the map", "ms", "memory / size of x"], rows)


if __name__ == "__main__":
    main()
