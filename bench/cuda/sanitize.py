"""Small calls that take every path of the CUDA kernels, in every dtype, for compute-sanitizer:

    compute-sanitizer --tool memcheck python3 bench/cuda/sanitize.py 70 200 1300 8500 60000 groups maps short
        dynamic windows

A number is a length for pool1d, `groups` are groups of its channels, `maps` is pool2d, `short` and `dynamic` are those
convolutions, `windows` is predict_windows. initcheck wants kernels built for plain 9.0
(-DCONTEXTPOOL_CUDA_ARCHITECTURES=90-real): it does not see what the bulk copy engine of 9.0a writes.
"""

import itertools
import sys

import torch

import contextpool

INF = float("inf")
PLAIN = 2000  # tokens above which float64 is left out: its kernel looks at all pairs


def draw(*shape):
    return torch.rand(shape, device="cuda")


def step(call, x, *scalars):
    scalars = [t.to(torch.float64 if x.dtype == torch.float64 else torch.float32).requires_grad_() for t in scalars]
    y = call(x.requires_grad_(), *scalars)
    torch.autograd.grad(y, (x, *scalars), torch.ones_like(y))


def sequences(n, dtype):
    if dtype == torch.float64 and n > PLAIN:
        return
    # Tiles of half types are narrow up to 64 channels; 264 are more than one of the wide ones.
    for channels, causal in itertools.product((264,) if n == 200 else (40,) if n > 10000 else (40, 72), (False, True)):
        for widest in (4.0, 0.1 * n):
            for algorithm in ("auto", "dense", "window") if n <= 300 else ("auto",):
                log_weight = 4 * draw(2, n)
                log_weight[:, ::5] = -INF
                step(lambda *t: contextpool.pool1d(*t, causal=causal, algorithm=algorithm),
                     draw(2, n, channels).to(dtype), log_weight, widest * draw(2, n - 10))


def groups(dtype):
    for n in (70, 700):
        x = draw(2, n, 3, 24).to(dtype).transpose(1, 2)  # side by side
        step(lambda *t: contextpool.pool1d(*t, causal=n == 700), x, 4 * draw(2, 3, n), 0.1 * n * draw(2, 3, n - 10))


def maps(dtype):
    for side, stride, last in ((9, 1, False), (30, 2, True), (24, 1, True)):
        x, targets = draw(2, 72, side, side).to(dtype), -(-side // stride)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        step(lambda *t: contextpool.pool2d(*t, stride=(stride, stride)),
             x, 4 * draw(2, side, side), 3 * draw(2, targets, targets))


def short(dtype):
    for taps in (1, 4, 7, 15, 31):
        for channels in (72, 5):
            x, weight, bias = draw(2, 203, channels).to(dtype), draw(channels, taps), draw(channels)
            leaves = [t.requires_grad_() for t in (x, weight, bias)]
            y = contextpool.ops.short_convolution(*leaves, left=taps // 2, residual=True)
            torch.autograd.grad(y, leaves, torch.ones_like(y))


def dynamic(dtype):
    for taps, rank, targets in ((4, 15, 203), (3, 4, 203), (4, 15, 2), (1, 1, 203)):
        for channels in (200, 5):
            shapes = ((2, 203, channels), (2, targets, rank), (taps, channels, rank), (channels, taps))
            leaves = [draw(*shape).to(dtype).requires_grad_() for shape in shapes]
            y = contextpool.ops.dynamic_convolution(*leaves, left=taps // 2, residual=True)
            torch.autograd.grad(y, leaves, torch.ones_like(y))


def windows(dtype):
    for hidden, taps, channels, sizes in ((64, 3, 2, 1), (64, 3, 16, 8), (24, 4, 32, 16), (8, 1, 3, 0)):
        shapes = ((2, 203, taps * hidden), (hidden,), (channels, hidden, taps), (channels,))
        leaves = [draw(*shape).requires_grad_() for shape in shapes]
        product = leaves[0].to(dtype)
        results = contextpool.ops.predict_windows(product, *leaves[1:], left=taps - 1, sizes=sizes, size_range=2.0, span=9.0)
        torch.autograd.grad(sum(r.sum() for r in results), leaves)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    for what in sys.argv[1:]:
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            named = {"groups": groups, "maps": maps, "short": short, "dynamic": dynamic, "windows": windows}
            named.get(what, lambda dtype, n=what: sequences(int(n), dtype))(dtype)
    torch.cuda.synchronize()
    print("ran", *sys.argv[1:])


if __name__ == "__main__":
    main()
