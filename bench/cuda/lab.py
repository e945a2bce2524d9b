"""The kernel lab: pool1d on the GPU against the formula in float64, and against the clock.

    python3 bench/cuda/lab.py check            every dtype, path and awkward input; exit status 1 on a miss
    python3 bench/cuda/lab.py time             the shapes of docs/performance.md, beside a copy measured in the same run
                                               and beside the dense formula under torch.compile (bench/peers.py)
    python3 bench/cuda/lab.py linear           nanoseconds a token as rows grow, for narrow, wide and mixed sizes
    python3 bench/cuda/lab.py few              a few targets at the end of a long row, beside the formula in PyTorch
    python3 bench/cuda/lab.py parts            microseconds of each kernel (PyTorch's profiler)
    python3 bench/cuda/lab.py host             microseconds of the host's time in a call, and of steps of little work
                                               beside PyTorch's own

--library names a libcontextpool_ops.so; without it, the installed package is used.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from stopwatch import copy_rate, medians_ms, replay_of

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "tests/python")]
from peers import compiled_pool1d
from pool1d_cases import Inputs, Reference

INF = float("inf")


def dense(x, l, sigma, causal):
    """The formula written densely in PyTorch, the average in x's own dtype."""
    dead = l == -INF
    n, m = x.shape[1], sigma.shape[1]
    i = torch.arange(n - m, n, device=x.device, dtype=torch.float32)[:, None]
    j = torch.arange(n, device=x.device, dtype=torch.float32)[None, :]
    score = l[:, None, :] - (i - j) ** 2 / (2 * sigma[:, :, None].clamp(min=1e-3) ** 2)
    gone = dead[:, None, :] | ((i - j) ** 2 > 160 * sigma[:, :, None].clamp(min=1e-3) ** 2)
    if causal:
        gone = gone | (j > i)
    score = score.masked_fill(gone, -1e30)
    return torch.softmax(score, -1).masked_fill(gone, 0).to(x.dtype) @ x


# ---------------------------------------------------------------------------------------------------------- correctness


def sizes(kind, b, m, n, g):
    u = torch.rand(b, m, generator=g, device="cuda")
    if kind == "paper":
        return 0.1 * n * u + 0.3
    if kind == "log":
        return 0.5 * 32**u
    if kind == "all":  # 0 and below, tiny, huge
        s = torch.exp(torch.empty_like(u).uniform_(-3, math.log(4 * n), generator=g))
        s[:, ::7] = 0
        s[:, 3::11] = -1
        s[:, 5::13] = 1e-30
        s[:, 2::17] = 1e30
        return s
    if kind == "mixed":  # from half a token to a quarter of the row, as many of each order of size
        return 0.5 * (n / 2) ** u
    if kind == "wide":
        return 0.3 * n * u + 0.05 * n
    return torch.full_like(u, float(kind))


def log_weights(kind, b, n, g):
    l = torch.randn(b, n, generator=g, device="cuda")
    if kind == "cluster":  # a few tokens 40 above the rest
        l = l.clamp(-2, 2) * 0.5
        l[:, n // 3 : n // 3 + max(1, n // 50)] += 38
    if kind == "steep":
        l = 40 * torch.rand(b, n, generator=g, device="cuda")
    if kind == "masked":
        l[torch.rand(b, n, generator=g, device="cuda") < 0.3] = -INF
        l[:, : n // 4] = -INF
        l[0, n // 2 :] = -INF
    if kind == "sparse":
        l[torch.rand(b, n, generator=g, device="cuda") < 0.995] = -INF
    if kind == "nothing":
        l[:] = -INF
    return l


def check_case(op, dtype, b, n, m, d, causal, size, weight, algorithm, seed=0, transposed=False):
    g = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(b, n, d, generator=g, device="cuda").to(dtype)
    l, sigma = log_weights(weight, b, n, g), sizes(size, b, m, n, g)
    dy = torch.randn(b, m, d, generator=g, device="cuda").to(dtype)
    if dtype == torch.float64:
        l, sigma = l.double(), sigma.double()
    given = x.clone()
    given[l == -INF] = float("nan")  # what a masked token holds must not matter
    if transposed:
        given = given.transpose(1, 2).contiguous().transpose(1, 2)
    got = run(op, given, l, sigma, causal, algorithm, dy)
    repeated = run(op, given, l, sigma, causal, algorithm, dy)
    same = all(torch.equal(p, q) for p, q in zip(got, repeated))
    worst = Reference(Inputs(x, l, sigma), causal, dy, None).ratios(got)
    ok = same and max(worst) <= 1
    label = f"{str(dtype)[6:]:9} {b},{n},{m},{d} {'causal' if causal else 'both':6}"
    label += f" size {size} weight {weight} {algorithm}"
    if transposed:
        label += " transposed"
    print(f"{'ok  ' if ok else 'MISS'} {label:80} error/allowed " +
          " ".join(f"{w:.3f}" for w in worst) + ("" if same else "  NOT REPEATABLE"), flush=True)
    return ok


def run(op, x, l, sigma, causal, algorithm, dy):
    x, l, sigma = (t.detach().requires_grad_() for t in (x, l, sigma))
    y = op(x, l, sigma, causal, algorithm)
    return y.detach(), *torch.autograd.grad(y, (x, l, sigma), dy)


def check(op, quick):
    bf, hf, f4, f8 = torch.bfloat16, torch.float16, torch.float32, torch.float64
    cases = []
    for dtype in (f8, f4, bf, hf):
        for causal in (False, True):
            cases += [(dtype, 2, 130, 130, 40, causal, "paper", "normal", "auto"),
                      (dtype, 2, 77, 50, 24, causal, "all", "masked", "auto"),
                      (dtype, 1, 100, 100, 7, causal, "all", "cluster", "auto")]
            if dtype == f8:
                continue
            cases += [(dtype, 2, 300, 300, 520, causal, "paper", "masked", "auto"),
                      (dtype, 1, 64, 64, 1600, causal, "4", "normal", "auto"),
                      (dtype, 2, 1500, 1500, 64, causal, "paper", "normal", "auto"),
                      (dtype, 2, 2048, 2048, 72, causal, "log", "normal", "auto"),
                      (dtype, 2, 2100, 2000, 48, causal, "all", "normal", "auto"),
                      (dtype, 2, 1300, 1200, 264, causal, "all", "masked", "auto"),
                      (dtype, 2, 3000, 3000, 33, causal, "paper", "cluster", "auto"),
                      (dtype, 2, 2500, 2500, 40, causal, "all", "masked", "auto"),
                      (dtype, 1, 4096, 4096, 40, causal, "all", "steep", "auto"),
                      (dtype, 2, 2500, 2500, 40, causal, "all", "sparse", "auto"),
                      (dtype, 1, 2048, 2048, 16, causal, "wide", "nothing", "auto"),
                      (dtype, 1, 300, 300, 40, causal, "wide", "normal", "pyramid"),
                      (dtype, 1, 4096, 1, 40, causal, "wide", "normal", "auto"),
                      (dtype, 1, 5000, 5000, 64, causal, "wide", "normal", "auto"),
                      (dtype, 1, 9000, 9000, 24, causal, "all", "normal", "auto"),
                      (dtype, 1, 1200, 1200, 64, causal, "wide", "cluster", "window"),
                      (dtype, 520, 200, 200, 40, causal, "all", "normal", "auto"),  # thousands of tiles
                      (dtype, 128, 600, 600, 40, causal, "all", "normal", "auto")]
    if quick:
        cases = [c for c in cases if c[0] in (bf, f4)]
    ok = [check_case(op, *c) for c in cases]
    ok.append(check_case(op, bf, 2, 300, 300, 64, False, "paper", "masked", "auto", transposed=True))
    ok.append(check_nan(op))
    print(f"{sum(ok)} of {len(ok)} cases within the contract")
    return all(ok)


def check_nan(op):
    """A NaN in a live token reaches exactly the targets (and channel) that use it; causal, never an earlier one."""
    ok = True
    for dtype in (torch.float32, torch.bfloat16):
        for n in (200, 2048):
            for causal in (False, True):
                x = torch.randn(1, n, 64, device="cuda").to(dtype)
                x[0, n // 2, 3] = float("nan")
                l, sigma = torch.zeros(1, n, device="cuda"), torch.full((1, n), 2.0, device="cuda")
                y = op(x, l, sigma, causal, "auto")
                bad = torch.isnan(y)
                near = bad[0, n // 2, 3] and (causal or bad[0, n // 2 - 2, 3])
                far = not bad[0, : n // 2 - 30].any() and not bad[0, n // 2 + 30 :].any() and not bad[0, :, 4:].any()
                past = not causal or not bad[0, : n // 2].any()
                ok = ok and bool(near and far and past)
    print(f"{'ok  ' if ok else 'MISS'} NaN reaches those that use it")
    return ok


# ----------------------------------------------------------------------------------------------------------------- time

SHAPES = [("32,256,512", False, "paper"), ("64,577,768", False, "paper"), ("32,2048,512", False, "paper"),
          ("16,8192,512", False, "paper"), ("16,8192,512", True, "paper"), ("16,8192,512", False, "log"),
          ("1,32768,512", False, "paper"), ("1,1048576,512", False, "paper")]


def problem(shape, size, dtype):
    b, n, d = map(int, shape.split(","))
    g = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(b, n, d, generator=g, device="cuda", dtype=torch.float32).to(dtype)
    l = torch.randn(b, n, generator=g, device="cuda")
    return x, l, sizes(size, b, n, n, g)


def step_of(call, x, l, sigma):
    """Forward and backward as one call."""
    x, l, sigma = (t.clone().requires_grad_() for t in (x, l, sigma))
    dy = torch.randn_like(x)
    return lambda: torch.autograd.grad(call(x, l, sigma), (x, l, sigma), dy)


def extra_memory(step, x, l):
    """What a step takes at the highest beyond its results (y, dx, dl, dsigma), in sizes of x."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    results = 2 * x.numel() * x.element_size() + 8 * l.numel()
    return (torch.cuda.max_memory_allocated() - before - results) / (x.numel() * x.element_size())


def time_all(op, shapes, dtype):
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {rate / 1e9:.2f} TB/s")
    for shape, causal, size in SHAPES:
        if shapes and shape not in shapes:
            continue
        x, l, sigma = problem(shape, size, dtype)
        row = {"shape": shape, "causal": causal, "size": size, "dtype": str(dtype)[6:]}
        ours = lambda x, l, s: op(x, l, s, causal, "auto")
        theirs = None
        if x.shape[1] <= 32768:
            theirs = lambda x, l, s: compiled_pool1d(x, l, s, causal)
        with torch.no_grad():
            calls = [lambda: ours(x, l, sigma), replay_of(lambda: ours(x, l, sigma))]
            if theirs:
                calls.append(lambda: theirs(x, l, sigma))
            row.update(zip(("fwd", "fwd_graph", "compile_fwd"), medians_ms(*calls)))
        step = step_of(ours, x, l, sigma)
        row["extra_x"] = extra_memory(step, x, l)
        calls = [step, replay_of(step)]
        if theirs:
            calls.append(step_of(theirs, x, l, sigma))
        row.update(zip(("both", "both_graph", "compile_both"), medians_ms(*calls)))
        del calls, step
        floor = 6 * x.numel() * x.element_size() / rate
        row["floors"] = row["both_graph"] / floor
        row["tb_s"] = 6 * x.numel() * x.element_size() / row["both_graph"] / 1e9
        row["ns_token"] = row["both_graph"] * 1e6 / l.numel()
        if theirs:
            row["times_eager"] = row["compile_both"] / row["both"]
            row["times_graph"] = row["compile_both"] / row["both_graph"]
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        x = l = sigma = None  # before the next ones are made
        torch.cuda.empty_cache()


def linear(op, dtype):
    """Time of a step by its tokens; a row of 1048576 should take as much of it as one of 131072."""
    lengths = 32768, 131072, 1048576
    print("sizes   causal  " + "".join(f"{n:>9}" for n in lengths) + "   tokens: nanoseconds each, in replay")
    for size in ("log", "paper", "mixed"):
        for causal in (False, True):
            each = []
            for n in lengths:
                x, l, sigma = problem(f"1,{n},512", size, dtype)
                replay = replay_of(step_of(lambda x, l, s, c=causal: op(x, l, s, c, "auto"), x, l, sigma))
                each.append(medians_ms(replay, count=20, rounds=2)[0] * 1e6 / n)
                del x, l, sigma, replay
                torch.cuda.empty_cache()
            print(f"{size:8}{str(causal):8}" + "".join(f"{v:9.2f}" for v in each), flush=True)


def few(op, dtype):
    """A few targets at the end of a long row, as in writing one token after another: forward alone, causal."""
    print(" tokens targets  sizes   ours: eager replay   dense in PyTorch: eager replay   microseconds")
    for n in (1024, 4096, 16384, 131072):
        x, l, _ = problem(f"1,{n},512", "paper", dtype)
        for m in (1, 64):
            for size in ("40", "paper"):
                sigma = sizes(size, 1, m, n, torch.Generator("cuda").manual_seed(1))
                with torch.no_grad():
                    calls = [lambda s=sigma: op(x, l, s, True, "auto"), lambda s=sigma: dense(x, l, s, True)]
                    calls = [calls[0], replay_of(calls[0]), calls[1], replay_of(calls[1])]
                    us = [1e3 * ms for ms in medians_ms(*calls)]
                print(f"{n:7} {m:7}  {size:7}      {us[0]:7.0f}{us[1]:7.0f}{us[2]:24.0f}{us[3]:7.0f}", flush=True)


def parts(op, shapes, dtype):
    from torch.profiler import ProfilerActivity, profile

    for shape, causal, size in SHAPES:
        if shapes and shape not in shapes:
            continue
        x, l, sigma = problem(shape, size, dtype)
        x, l, sigma = (t.requires_grad_() for t in (x, l, sigma))
        dy = torch.randn_like(x)
        for _ in range(3):
            torch.autograd.grad(op(x, l, sigma, causal, "auto"), (x, l, sigma), dy)
        with profile(activities=[ProfilerActivity.CUDA]) as prof:
            for _ in range(5):
                torch.autograd.grad(op(x, l, sigma, causal, "auto"), (x, l, sigma), dy)
            torch.cuda.synchronize()
        print(f"-- {shape} {'causal' if causal else 'both ways'} sizes {size}: microseconds a step")
        for e in sorted(prof.key_averages(), key=lambda e: -e.device_time_total):
            print(f"{e.device_time_total / 5:9.1f}  x{e.count // 5}  {e.key[:100]}")
        sys.stdout.flush()


def host(op):
    """What a call costs the host, which only shows where the GPU has little to do."""
    x, l, sigma = problem("32,256,512", "paper", torch.bfloat16)
    dy, w = torch.randn_like(x), torch.ones_like(x)
    xs = x.clone().requires_grad_()

    def microseconds(call, count=2000):
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count * 1e6

    with torch.no_grad():
        y, kept = torch.ops.contextpool._pool1d_keep(x, l, sigma, causal=False, algorithm="auto")
        backward = torch.ops.contextpool._pool1d_backward
        calls = {
            "forward": lambda: op(x, l, sigma, False, "auto"),
            "backward": lambda: backward(dy, x, l, sigma, causal=False, algorithm="auto", kept=kept),
            "x * w": lambda: x * w,
        }
        for name, call in calls.items():
            print(f"{microseconds(call):7.1f}  {name}")
    step = step_of(lambda x, l, s: op(x, l, s, False, "auto"), x, l, sigma)
    print(f"{microseconds(step):7.1f}  forward and backward through autograd")
    print(f"{microseconds(lambda: torch.autograd.grad(xs * w, (xs,), dy)):7.1f}  x * w through autograd")
    scale, shift = (torch.full((x.shape[-1],), v, device="cuda", dtype=x.dtype).requires_grad_() for v in (1.0, 0.0))
    norm = lambda: torch.nn.functional.layer_norm(xs, scale.shape, scale, shift)
    steps = {
        "ours": step,
        "layer_norm": lambda: torch.autograd.grad(norm(), (xs, scale, shift), dy),
        "x * w": lambda: torch.autograd.grad(xs * w, (xs,), dy),
        "the dense form under torch.compile": step_of(lambda x, l, s: compiled_pool1d(x, l, s, False), x, l, sigma),
    }
    for name, ms in zip(steps, medians_ms(*steps.values(), count=500)):  # as `time` measures: the GPU idle before
        print(f"{ms * 1e3:7.1f}  a step of {name}, to the end of its work on the GPU")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("what", choices=["check", "time", "linear", "few", "parts", "host"])
    ap.add_argument("--library")
    ap.add_argument("--shapes", default="", help="B,N,D;B,N,D: only these")
    ap.add_argument("--dtype", default="bfloat16")
    ap.add_argument("--algorithm", default="auto")
    ap.add_argument("--quick", action="store_true")
    a = ap.parse_args()
    if a.library:
        torch.ops.load_library(a.library)
        pool1d = torch.ops.contextpool.pool1d
    else:
        from contextpool import pool1d

    def op(x, l, s, causal, algorithm):
        algorithm = a.algorithm if algorithm == "auto" else algorithm
        return pool1d(x, l, s, causal=causal, algorithm=algorithm)

    shapes = [s for s in a.shapes.split(";") if s]
    if a.what == "check":
        sys.exit(0 if check(op, a.quick) else 1)
    if a.what == "host":
        host(op)
    elif a.what == "few":
        few(op, getattr(torch, a.dtype))
    elif a.what == "linear":
        linear(op, getattr(torch, a.dtype))
    elif a.what == "time":
        time_all(op, shapes, getattr(torch, a.dtype))
    else:
        parts(op, shapes, getattr(torch, a.dtype))


if __name__ == "__main__":
    main()
