"""Small calls that take every path of the CUDA kernels, in every dtype, for compute-sanitizer:

    compute-sanitizer --tool memcheck python3 bench/cuda/sanitize.py

N: pool1d at these lengths (default 70 200 1300 8500); maps: pool2d. --library names a libcontextpool_ops.so; without
it, the installed package is used. initcheck wants kernels built for plain 9.0 (-DCONTEXTPOOL_CUDA_ARCHITECTURES=90-real):
it does not see what the bulk copy engine of 9.0a writes.
"""

import argparse

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def step(call, x, *scalars):
    scalars = [t.to(torch.float64 if x.dtype == torch.float64 else torch.float32).requires_grad_() for t in scalars]
    y = call(x.requires_grad_(), *scalars)
    torch.autograd.grad(y, (x, *scalars), torch.ones_like(y))


def sequences(n, dtype, g):
    def draw(*shape):
        return torch.rand(shape, generator=g, device="cuda")

    channels = 264 if n == 200 else 40
    for causal in (False, True):
        for widest in (4.0, 0.1 * n):
            for algorithm in ("auto", "dense", "window") if n <= 300 else ("auto",):
                log_weight = 4 * draw(2, n)
                log_weight[:, ::5] = -float("inf")
                step(lambda *t: torch.ops.contextpool.pool1d(*t, causal=causal, algorithm=algorithm),
                     draw(2, n, channels).to(dtype), log_weight, widest * draw(2, n - 10))


def maps(dtype, g):
    def draw(*shape):
        return torch.rand(shape, generator=g, device="cuda")

    for side, stride, last in ((9, 1, False), (30, 2, True), (24, 1, True)):
        x, targets = draw(2, 72, side, side).to(dtype), -(-side // stride)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        step(lambda *t: torch.ops.contextpool.pool2d(*t, stride=[stride, stride]),
             x, 4 * draw(2, side, side), 3 * draw(2, targets, targets))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", nargs="*", default=["70", "200", "1300", "8500"], metavar="N|maps")
    ap.add_argument("--library")
    a = ap.parse_args()
    if a.library:
        torch.ops.load_library(a.library)
    else:
        import contextpool  # noqa: F401
    g = torch.Generator("cuda").manual_seed(0)
    for what in a.what:
        for dtype in DTYPES:
            maps(dtype, g) if what == "maps" else sequences(int(what), dtype, g)
    torch.cuda.synchronize()
    print("ran", *a.what)


if __name__ == "__main__":
    main()
