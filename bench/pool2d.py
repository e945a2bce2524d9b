"""How fast pool2d is beside what a PyTorch user would write, and how much memory it takes on a large map.

Both sides run in this process on the same float32 tensors, on all cores, in turns; every time is a median. The other
side is the formula of peers.py: weights [B, targets, pixels] by a softmax, times the features. Prints markdown.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

import contextpool
from measure import machine, medians_ms, memory, print_table
from peers import MAP_RATIO, compiled_pool2d, maps
from peers import pool2d as dense

Pool = Callable[[Tensor, Tensor, Tensor, int], Tensor]
# batch, channels, side, stride
CASES = ((8, 64, 56, 1), (8, 64, 56, 2), (8, 128, 28, 1), (8, 256, 14, 1), (16, 4, 32, 1), (16, 16, 32, 1))
LARGE = (1, 64, 112, 1)
QUICK = ((1, 16, 14, 1), (1, 16, 14, 2))
QUICK_LARGE = (1, 8, 28, 1)


def pool(x: Tensor, log_weight: Tensor, sigma: Tensor, stride: int) -> Tensor:
    return contextpool.pool2d(x, log_weight, sigma, (stride, stride))


def step(f: Pool, tensors: list[Tensor], stride: int) -> Callable[[], None]:
    """Forward and backward as one call."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    shape = (*tensors[0].shape[:2], *tensors[2].shape[1:])
    dy = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return lambda: torch.autograd.grad(f(*leaves, stride), leaves, dy)


def compare(cases: Iterable[tuple[int, int, int, int]], seconds: float) -> Iterable[list[str]]:
    for batch, channels, side, stride in cases:
        tensors = maps(batch, channels, side, stride)
        last = maps(batch, channels, side, stride, channels_last=True)
        sides: list[Pool] = [pool, dense, compiled_pool2d]
        with torch.no_grad():
            forward = medians_ms(*(lambda f=f: f(*tensors, stride) for f in sides), seconds=seconds)
            difference = (pool(*tensors, stride) - dense(*tensors, stride)).abs().max() / tensors[0].abs().max()
        steps = [step(f, tensors, stride) for f in sides]
        both = medians_ms(*steps, step(pool, last, stride), seconds=seconds)
        yield [f"{batch} x {channels} x {side} x {side}", f"{stride}", *(f"{ms:.1f}" for ms in forward + both),
               *(f"{t[k] / t[0]:.1f}" for t in (forward, both) for k in (1, 2)), f"{difference:.0e}"]  # fmt: skip


def large(shape: tuple[int, int, int, int], channels_last: bool, beyond_map: bool) -> dict[str, float]:
    """One map, in a process of its own so that the peak is its own."""
    step(pool, maps(1, 8, 32, 1), 1)()  # starts threads
    tensors = maps(*shape, channels_last=channels_last)
    if beyond_map:  # every window reaches beyond the map
        tensors[2] += shape[2]
    run = step(pool, tensors, 1)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest starts again from here
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    return {"ms": 1e3 * seconds, "extra": (memory("VmHWM") - before) / tensors[0].nbytes}


def few_channels() -> Iterable[list[str]]:
    """CPU time of one thread, which other load on the machine changes little; the least of several calls."""
    torch.set_num_threads(1)

    def nanoseconds(call: Callable[[], object], targets: int) -> float:
        call()
        times = []
        for _ in range(5):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        return 1e9 * min(times) / targets

    for sigma in (0.5, 1.0):
        for channels in (4, 16, 64):
            x, log_weight, _ = maps(16, channels, 32, 1, channels_last=True)
            spread = torch.randn(log_weight.shape, generator=torch.Generator().manual_seed(0))
            leaves = [t.detach().requires_grad_() for t in (x, log_weight, sigma * (1 + 0.1 * spread))]
            with torch.no_grad():
                forward = nanoseconds(lambda leaves=leaves: pool(*leaves, 1), log_weight.numel())
            y = pool(*leaves, 1)
            backward = nanoseconds(
                lambda y=y, leaves=leaves: torch.autograd.grad(y, leaves, torch.ones_like(y), retain_graph=True),
                log_weight.numel(),
            )
            yield [f"{sigma:g}", f"{channels}", f"{forward:.0f}", f"{backward:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small maps, few repetitions")
    parser.add_argument("--few", action="store_true", help="only: nanoseconds a target, by channels, on one thread")
    parser.add_argument("--large", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases, shape, seconds = (QUICK, QUICK_LARGE, 0.2) if args.quick else (CASES, LARGE, 1.0)
    if args.large:
        print(json.dumps(large(shape, *(v == "yes" for v in args.large))))
        return
    if args.few:
        print(f"\n{machine()}; CPU time of one thread, 16 maps of 32 x 32, nanoseconds a target.\n")
        print_table(["sigma", "channels", "forward", "backward"], few_channels())
        return
    print(f"\n{machine()}; medians.\n")
    print(f"sigma uniform up to {MAP_RATIO} of the side; milliseconds; difference of the two y in units of max |x|.\n")
    head = ["map", "stride", "forward", "eager", "compile", "fwd+bwd", "eager", "compile", "channels last",
            "forward faster than eager", "than compile", "fwd+bwd faster than eager", "than compile",
            "difference"]  # fmt: skip
    print_table(head, compare(cases, seconds))
    print(f"\n{' x '.join(map(str, shape[:3]))} x {shape[2]}: forward and backward once; extra memory at its peak.\n")
    rows = []
    for channels_last in ("no", "yes"):
        for beyond_map in ("no", "yes"):
            command = [sys.executable, __file__, *sys.argv[1:], "--large", channels_last, beyond_map]
            r = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append([channels_last, beyond_map, f"{r['ms']:.0f}", f"{r['extra']:.1f}"])
    print_table(["channels last", "windows beyond the map", "ms", "memory / size of x"], rows)


if __name__ == "__main__":
    main()
