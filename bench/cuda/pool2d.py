"""How fast pool2d is on a GPU beside what a PyTorch user would write, and how much memory it takes.

    python3 bench/cuda/pool2d.py            the maps of vision models; prints markdown
    python3 bench/cuda/pool2d.py --parts    microseconds of each kernel (PyTorch's profiler)

Both sides run in this process on the same tensors; every time is a median. The other side is the formula written
densely (weights [B, targets, pixels] by a softmax, times the features), eagerly and under torch.compile. A floor is
the least that must move (x and y in the forward; x, dy and dx in the backward) at the rate of a copy measured in the
same run.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from stopwatch import Step, copy_rate, medians_ms, replay_of
from torch import Tensor

import contextpool

sys.path.append(str(Path(__file__).parents[1]))
import peers

# batch, channels, side, stride, dtype, channels last
CASES = (
    (8, 64, 56, 1, torch.bfloat16, True),
    (8, 64, 56, 1, torch.bfloat16, False),
    (8, 64, 56, 1, torch.float32, False),
    (8, 64, 56, 2, torch.bfloat16, False),
    (64, 128, 28, 1, torch.bfloat16, True),
    (64, 128, 28, 1, torch.bfloat16, False),
    (64, 128, 28, 1, torch.float32, False),
    (64, 256, 14, 1, torch.bfloat16, True),
    (64, 256, 14, 1, torch.bfloat16, False),
    (64, 256, 14, 1, torch.float32, False),
    (64, 768, 24, 1, torch.bfloat16, True),
    (64, 768, 24, 1, torch.bfloat16, False),
    (64, 768, 24, 1, torch.float32, False),
)


def pool(x: Tensor, log_weight: Tensor, sigma: Tensor, stride: int) -> Tensor:
    return contextpool.pool2d(x, log_weight, sigma, (stride, stride))


def inputs(batch: int, channels: int, side: int, stride: int, dtype: torch.dtype, last: bool) -> list[Tensor]:
    return peers.maps(batch, channels, side, stride, "cuda", dtype, last)


def step(f: Callable[..., Tensor], tensors: list[Tensor], stride: int) -> Step:
    """Forward and backward as one call."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    with torch.no_grad():
        dy = torch.randn_like(pool(*tensors, stride))
    return lambda: torch.autograd.grad(f(*leaves, stride), leaves, dy)


def extra(call: Step, results: int) -> int:
    """Bytes at the highest, beyond the results."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before - results


def table(count: int) -> None:
    rate = copy_rate()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e9:.2f} TB/s; milliseconds,")
    print(f"medians of {count}; sigma uniform up to {peers.MAP_RATIO} of the side;")
    print("`faster`: torch.compile over ours in replay")
    print("(eager in brackets); difference of the two y in units of max |x|.\n")
    head = ["map", "dtype", "format", "forward", "replay", "dense", "compiled", "fwd+bwd", "replay", "floors", "dense",
            "compiled", "faster: forward", "fwd+bwd", "memory / x", "dense's", "difference"]  # fmt: skip
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for batch, channels, side, stride, dtype, last in CASES:
        dense, compiled = peers.pool2d, peers.compiled_pool2d
        tensors = inputs(batch, channels, side, stride, dtype, last)
        with torch.no_grad():
            y, other = pool(*tensors, stride), compiled(*tensors, stride)
            difference = (y.float() - other.float()).abs().max() / tensors[0].abs().max()
            pools = [lambda f=f: f(*tensors, stride) for f in (pool, dense, compiled)]
            forward, forward_dense, forward_compiled, forward_replay = medians_ms(
                *pools, replay_of(pools[0]), count=count)
        ours, theirs = step(pool, tensors, stride), step(compiled, tensors, stride)
        eager = step(dense, tensors, stride)
        both, both_dense, both_compiled, both_replay = medians_ms(ours, eager, theirs, replay_of(ours), count=count)
        results = y.nbytes + sum(t.nbytes for t in tensors)
        memory = [extra(call, results) / tensors[0].nbytes for call in (ours, theirs)]
        floor = (2 * y.nbytes + 3 * tensors[0].nbytes) / rate
        row = [f"{batch} x {channels} x {side}²" + (f" / {stride}" if stride > 1 else ""),
               str(dtype).removeprefix("torch."), "last" if last else "first",
               f"{forward:.3f}", f"{forward_replay:.3f}", f"{forward_dense:.3f}", f"{forward_compiled:.3f}",
               f"{both:.3f}", f"{both_replay:.3f}", f"{both_replay / floor:.1f}", f"{both_dense:.3f}",
               f"{both_compiled:.3f}",
               f"{forward_compiled / forward_replay:.1f} ({forward_compiled / forward:.1f})",
               f"{both_compiled / both_replay:.1f} ({both_compiled / both:.1f})", f"{memory[0]:.1f}",
               f"{memory[1]:.1f}", f"{difference:.0e}"]  # fmt: skip
        print("| " + " | ".join(row) + " |", flush=True)


def parts() -> None:
    from torch.profiler import ProfilerActivity, profile

    for case in CASES:
        stride = case[3]
        call = step(pool, inputs(*case), stride)
        for _ in range(3):
            call()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            for _ in range(5):
                call()
            torch.cuda.synchronize()
        print("--", *case)
        for event in sorted(trace.key_averages(), key=lambda e: -e.device_time_total):
            if event.device_time_total > 0:
                print(f"{event.device_time_total / 5:9.1f}  {event.key[:100]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--parts", action="store_true", help="microseconds of each kernel")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32, on both sides
    if args.parts:
        parts()
    else:
        table(10 if args.quick else 50)


if __name__ == "__main__":
    main()
