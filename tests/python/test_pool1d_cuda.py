"""pool1d on a GPU: the contract of the CPU tests again, and what only a GPU has (streams, graphs, torch.compile)."""

import itertools
import math

import pytest
import torch
from functorch.compile import aot_function

import contextpool
from pool1d_cases import Inputs, check, formula, gradients

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

INF = float("inf")


def reference(x, l, sigma, causal, dy):
    """y, dx, dl, dsigma of the formula, in float64."""
    exact = Inputs(*(t.double() for t in (x, l, sigma))).leaves()
    y = formula(*exact, causal)
    return y.detach(), *gradients(y, exact, dy.double())


def run(x, l, sigma, causal, dy, algorithm="auto"):
    x, l, sigma = (t.detach().requires_grad_() for t in (x, l, sigma))
    y = contextpool.pool1d(x, l, sigma, causal, algorithm)
    return y.detach(), *torch.autograd.grad(y, (x, l, sigma), dy)


def inputs(b, n, m, d, dtype, weights="normal", seed=0):
    g = torch.Generator().manual_seed(seed)
    x, dy = torch.randn(b, n, d, generator=g), torch.randn(b, m, d, generator=g)
    l = torch.randn(b, n, generator=g)
    if weights == "masked":
        l[torch.rand(b, n, generator=g) < 0.3] = -INF
        l[0, n // 2 :] = -INF
    if weights == "cluster":
        l[:, n // 3 : n // 3 + n // 50 + 1] += 36
    sigma = torch.exp(torch.rand(b, m, generator=g) * (math.log(n) + 2) - 2)
    sigma[:, ::9] = 0
    scalar = torch.float64 if dtype == torch.float64 else torch.float32
    return x.to("cuda", dtype), l.to("cuda", scalar), sigma.to("cuda", scalar), dy.to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("weights", ["normal", "masked", "cluster"])
@pytest.mark.parametrize("shape", [(2, 77, 77, 24), (1, 200, 130, 7), (2, 1500, 1500, 40), (1, 2100, 2000, 72), (2, 700, 650, 264)])
def test_matches_the_formula(dtype, causal, weights, shape):
    if dtype == torch.float64 and shape[1] > 1000:
        pytest.skip("float64 is for checks at small sizes")
    x, l, sigma, dy = inputs(*shape, dtype, weights)
    given = x.masked_fill((l == -INF)[:, :, None], float("nan"))
    check(Inputs(given, l, sigma), causal, "auto", dy)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [200, 2048])
def test_repeats_bit_for_bit_on_another_stream_and_in_a_graph(causal, n):
    x, l, sigma, dy = inputs(2, n, n, 64, torch.bfloat16)
    want = run(x, l, sigma, causal, dy)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            other = run(x, l, sigma, causal, dy)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(x, l, sigma, causal, dy)
    for t in captured:
        t.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    for a, b, c in zip(want, other, captured):
        assert torch.equal(a, b) and torch.equal(a, c)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [200, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_batch_gives_each_sequence_its_own_bits(n, causal, dtype):
    """Where there are thousands of tiles, thread blocks share out their work in another way."""
    few = inputs(3, n, n, 72, dtype)
    many = [torch.cat([t] * 200) for t in few]
    for alone, all_of_them in zip(run(*few[:3], causal, few[3]), run(*many[:3], causal, many[3])):
        assert torch.equal(all_of_them.unflatten(0, (200, 3)), alone.expand(200, *alone.shape))


@pytest.mark.parametrize("n", [200, 2048])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_targets_do_not_see_the_future(n, dtype):
    x, l, sigma, dy = inputs(1, n, n, 40, dtype)
    cut = n * 2 // 3
    y = contextpool.pool1d(x, l, sigma, True)
    x2, l2, sigma2 = x.clone(), l.clone(), sigma.clone()
    x2[:, cut:], l2[:, cut:], sigma2[:, cut:] = 3, 11, 50
    assert torch.equal(contextpool.pool1d(x2, l2, sigma2, True)[:, :cut], y[:, :cut])
    x2[:, cut:] = float("nan")
    assert torch.isfinite(contextpool.pool1d(x2, l2, sigma2, True)[:, :cut]).all()


@pytest.mark.parametrize("later", [2.0, 30.0, 60.0, 800.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_bit_depends_on_later_sizes(dtype, later):
    """Sizes decide which targets share a tile, and how many do where such targets are rare."""
    n = 8192
    x, l, _, dy = inputs(1, n, n, 64, dtype)
    sigma = 0.1 * n * torch.rand(1, n, generator=torch.Generator().manual_seed(1)).cuda() + 0.3
    for cut in range(1500, n, 500):
        past, other = dy.clone(), sigma.clone()
        past[:, cut:], other[:, cut:] = 0, later
        want, got = (run(x, l, s, True, past) for s in (sigma, other))
        for a, b, name in zip(got, want, ("y", "dx", "dl", "dsigma")):
            assert torch.equal(a[:, :cut], b[:, :cut]), f"{name} before {cut}"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nan_weight_shows_as_far_as_windows_go(dtype, causal):
    n, bad, size = 4000, 710, 100.0  # a window of 1264 to each side, which blocks of 64 do not fill
    x, l, _, _ = inputs(1, n, n, 8, dtype)
    l[:, bad] = float("nan")
    y = contextpool.pool1d(x, l, torch.full_like(l, size), causal)
    distance = torch.arange(n, device="cuda") - bad
    uses = (distance**2 <= 160 * size**2) & ((distance >= 0) if causal else True)
    assert torch.equal(y[0].isnan().any(-1), uses)


@pytest.mark.parametrize("n", [300, 2048])
def test_float16_takes_gradients_of_thousands(n):
    x, l, _, dy = inputs(1, n, n, 24, torch.float16)
    sigma, dy = torch.full_like(l, 100), (dy + 2) * 1000
    want = reference(x, 0 * l, sigma, False, dy)
    got = run(x, 0 * l, sigma, False, dy)
    assert (got[1].double() - want[1]).abs().max() <= 2e-3 * want[1].abs().max()
    assert got[2].isfinite().all() and got[3].isfinite().all()


@pytest.mark.parametrize("algorithm", ["auto", "window"])
def test_tokens_millions_apart(algorithm):
    """One target over 2^23 tokens, in blocks, or looked at one by one."""
    n, size = 1 << 23, 3e6
    x = torch.ones(1, n, 8, device="cuda", dtype=torch.bfloat16)
    l, sigma = torch.zeros(1, n, device="cuda"), torch.full((1, 1), size, device="cuda")
    dy = torch.full((1, 1, 8), 1e6, device="cuda", dtype=torch.bfloat16)
    dx = run(x, l, sigma, False, dy, algorithm)[1][0, :, 0].double()
    p = torch.softmax(-((torch.arange(n, device="cuda").double() - (n - 1)) ** 2) / (2 * size**2), 0)
    want = p * dy[0, 0, 0].double()
    assert ((dx - want).abs() <= 2e-2 * want + 1e-6 * want.max()).all()


@pytest.mark.parametrize("log_weight", [-6.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("n", [1536, 24576, 786432])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_token_alone_in_its_block_gets_its_gradient(dtype, n, log_weight):
    """No target has much of it, but all of them have a little."""
    l = torch.full((1, n), -INF, device="cuda")
    l[:, 2 * n // 3 :] = 0
    l[:, 100] = log_weight
    sigma = torch.full((1, n), INF, device="cuda")
    x = torch.ones(1, n, 8, device="cuda", dtype=dtype)
    dx = run(x, l, sigma, False, torch.ones_like(x))[1][0, :, 0].double()
    want = n * torch.softmax(l[0].double(), 0)
    allowed = (1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps) * want.max()
    if dtype == torch.float16:
        allowed += n * 2.0**-25  # what is nearer to 0 than to its least number
    assert ((dx - want).abs() <= allowed).all()


@pytest.mark.parametrize("algorithm", ["auto", "window"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", [70_000, 300, 1])
def test_long_rows_with_many_targets_or_few(targets, dtype, causal, algorithm):
    """Sizes of less than a token beside some of thousands, in no order; the formula at 256 of the targets."""
    x, l, sigma, dy = inputs(1, 80_000, targets, 8, dtype)
    if targets == 1:
        sigma.fill_(3000)
    if algorithm == "window":
        sigma.clamp_(max=40)
    visited = torch.randperm(targets, generator=torch.Generator().manual_seed(0))[:256].to("cuda")
    check(Inputs(x, l, sigma), causal, algorithm, dy, visited)


@pytest.mark.parametrize("what", ["x", "weights"])
@pytest.mark.parametrize("n", [200, 2048])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_target_whose_dy_is_0_has_no_share_in_any_gradient(n, dtype, what):
    if dtype == torch.float64 and n > 1000:
        pytest.skip("float64 is for checks at small sizes")
    x, l, sigma, dy = inputs(1, n, n, 40, dtype)
    cut = n * 2 // 3 + 5
    dy[:, cut:] = 0
    want = run(x, l, sigma, True, dy)[1:]
    (x if what == "x" else l)[:, cut:] = float("nan")
    got = run(x, l, sigma, True, dy)[1:]
    for a, b, name in zip(got, want, ("dx", "dl", "dsigma")):
        assert torch.isfinite(a[:, :cut]).all(), name
        assert (a[:, :cut] - b[:, :cut]).abs().max() <= 1e-6 * b.abs().max(), name
    assert (got[0][:, cut:] == 0).all() and (got[2][:, cut:] == 0).all()


@pytest.mark.parametrize("d", [33, 40])
def test_any_number_of_channels_and_any_strides(d):
    x, l, sigma, dy = inputs(2, 700, 700, 2 * d + 3, torch.bfloat16)
    want = run(x[..., 1 : d + 1].contiguous(), l, sigma, False, dy[..., 1 : d + 1].contiguous())
    got = run(x[..., 1 : d + 1], l, sigma, False, dy[..., 1 : d + 1])
    for a, b in zip(got, want):
        assert a.shape == b.shape and torch.equal(a, b)


def test_backward_makes_again_what_is_not_kept():
    x, l, sigma, dy = inputs(2, 1500, 1500, 64, torch.bfloat16)
    want = run(x, l, sigma, True, dy)[1:]
    got = torch.ops.contextpool._pool1d_backward(dy, x, l, sigma, causal=True, algorithm="auto")
    for a, b in zip(got, want):
        assert torch.equal(a, b)
    with pytest.raises(RuntimeError, match="_pool1d_keep"):
        torch.ops.contextpool._pool1d_backward(dy, x, l, sigma, causal=True, algorithm="auto", kept=l)


def test_one_target_is_the_last_row():
    x, l, sigma, _ = inputs(3, 2000, 2000, 64, torch.float32)
    whole = contextpool.pool1d(x, l, sigma, True)
    step = contextpool.pool1d(x, l, sigma[:, -1:], True)
    assert (whole[:, -1:] - step).abs().max() < 1e-5 * x.abs().max()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiles_whole(mode):
    def step(x, l, sigma):
        return contextpool.pool1d(x * 2, l, sigma, True).float().square().mean()

    x, l, sigma, _ = (t.requires_grad_() for t in inputs(2, 1500, 1500, 64, torch.bfloat16))
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    want = torch.autograd.grad(step(x, l, sigma), (x, l, sigma))
    for _ in range(3):
        got = torch.autograd.grad(compiled(x, l, sigma), (x, l, sigma))
    for a, b in zip(got, want):
        assert torch.allclose(a.float(), b.float(), rtol=2e-2, atol=1e-2 * b.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_what_traces_knows_the_size_of_what_is_kept(dtype):
    shapes = [(2, 70, 70, 33), (3, 577, 577, 40), (1, 3000, 20, 64), (2, 9000, 9000, 36), (1, 5, 0, 8), (0, 5, 5, 8)]
    for (b, n, m, d), causal in itertools.product(shapes, (False, True)):
        if dtype == torch.float64 and n > 1000:
            continue
        given = [t.to(dtype) if t.dim() == 3 else t for t in inputs(b, n, m, d, dtype)[:3]]
        options = {"causal": causal, "algorithm": "auto"}
        real = torch.ops.contextpool._pool1d_keep(*given, **options)
        faked = torch.ops.contextpool._pool1d_keep(*(t.to("meta") for t in given), **options)
        for a, b_ in zip(real, faked):
            assert (a.shape, a.dtype, a.stride()) == (b_.shape, b_.dtype, b_.stride()), (b, n, m, d, causal)


def test_a_compiled_step_makes_the_plan_and_the_tree_once():
    x, l, sigma, dy = inputs(2, 1500, 1500, 64, torch.bfloat16)
    leaves = [t.requires_grad_() for t in (x, l, sigma)]
    seen = []

    def note(graph, _):
        seen.append([n.target for n in graph.graph.nodes if "contextpool" in str(n.target)])
        return graph

    step = aot_function(lambda *t: contextpool.pool1d(*t, True), fw_compiler=note, bw_compiler=note)
    got = torch.autograd.grad(step(*leaves), leaves, dy)
    ops = torch.ops.contextpool
    assert seen == [[ops._pool1d_keep.default], [ops._pool1d_backward.default]]
    for a, b in zip(got, run(x, l, sigma, True, dy)[1:]):
        assert torch.equal(a, b)


def test_memory_stays_linear():
    x, l, sigma, dy = inputs(1, 16384, 16384, 256, torch.bfloat16)
    run(x, l, sigma, False, dy)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(x, l, sigma, False, dy)
    assert torch.cuda.max_memory_allocated() - before <= 5 * x.numel() * x.element_size()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [2048, 10000])
def test_sees_what_was_written_just_before(n, dtype):
    """Kernels start while others end; none may look at memory before its writer is done, or at an older copy of it."""
    given = [inputs(4, n, n, 256, dtype, seed=k) for k in range(3)]
    want = [run(x, l, sigma, False, dy) for x, l, sigma, dy in given]
    x, l, sigma, dy = (t.clone() for t in given[0])
    got = []
    for k in range(12):
        for mine, other in zip((x, l, sigma, dy), given[k % 3]):
            mine.copy_(other)
        got.append(run(x, l, sigma, False, dy))
    for k, results in enumerate(got):
        assert all(torch.equal(a, b) for a, b in zip(results, want[k % 3]))
