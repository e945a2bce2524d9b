"""pool2d on a GPU: the contract of the CPU tests again, and what only a GPU has (streams, graphs, torch.compile)."""

import pytest
import torch
from torch import Tensor

import contextpool
from pool1d_cases import DTYPES, INF, Inputs, devices, weight_dtype
from pool2d_cases import MAP_ALGORITHMS, check, laid_out, make
from test_pool2d import case_name, cases, dtype_name

pytestmark = pytest.mark.skipif("cuda" not in devices(), reason="needs a GPU and a library built for it")


def run(inputs: Inputs, dy: Tensor, stride: tuple[int, int] = (1, 1)) -> list[Tensor]:
    leaves = inputs.leaves()
    y = contextpool.pool2d(*leaves, stride)
    return [y.detach(), *torch.autograd.grad(y, tuple(leaves), dy)]


@pytest.mark.parametrize("case", cases(), ids=case_name)
def test_accuracy(case: tuple) -> None:
    shape, stride, dtype, algorithm, sizes, logits, mask, layout = case
    check(make(shape, stride, dtype, sizes, logits, mask, layout, device="cuda"), stride, algorithm)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("algorithm", MAP_ALGORITHMS)
def test_accuracy_at_a_contrast_of_forty(algorithm: str, dtype: torch.dtype) -> None:
    for sizes in ("log_uniform", "mixed"):
        check(make((1, 4, 28, 26), (1, 1), dtype, sizes, "clusters", seed=3, device="cuda"), (1, 1), algorithm)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
@pytest.mark.parametrize(
    "shape", ((2, 64, 56, 56), (3, 128, 28, 28), (4, 256, 14, 14), (2, 768, 24, 24), (1, 300, 17, 40)), ids=str
)
def test_accuracy_on_the_maps_of_networks(shape: tuple[int, int, int, int], layout: str, dtype: torch.dtype) -> None:
    for stride, sizes in (((1, 1), "proportional"), ((2, 2), "log_uniform")):
        check(make(shape, stride, dtype, sizes, "spread_1", layout=layout, device="cuda"), stride, "auto")


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("channels", (3, 64, 200))
def test_repeats_bit_for_bit_on_another_stream_in_a_graph_and_in_the_other_format(
    channels: int, dtype: torch.dtype
) -> None:
    inputs = make((2, channels, 30, 26), (1, 1), dtype, "mixed", "clusters", device="cuda")
    dy = torch.randn_like(inputs.x)
    want = run(inputs, dy)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # nothing waits for the device
    try:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                other = run(inputs, dy)
        torch.cuda.current_stream().wait_stream(stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(inputs, dy)
    for t in captured:
        t.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    last = run(inputs._replace(x=laid_out(inputs.x, "channels_last")), dy)
    assert last[0].is_contiguous(memory_format=torch.channels_last)
    for results in (other, captured, last):
        assert all(map(torch.equal, results, want))


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_gradcheck(layout: str) -> None:
    x, log_weight, sigma = make((1, 2, 5, 4), (2, 1), torch.float64, device="cuda")
    log_weight[0, 1, 2] = -INF
    sigma = torch.linspace(0.4, 9, sigma.numel(), dtype=torch.float64, device="cuda").reshape(sigma.shape).clone()
    sigma[0, 0, 1] = -1
    leaves = tuple(laid_out(t, layout).detach().clone().requires_grad_() for t in (x, log_weight, sigma))
    assert torch.autograd.gradcheck(lambda *t: contextpool.pool2d(*t, (2, 1)), leaves)


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_compiles_whole(layout: str, mode: str) -> None:
    def step(x: Tensor, log_weight: Tensor, sigma: Tensor) -> Tensor:
        return contextpool.pool2d(x * 2, log_weight, sigma, (2, 2)).float().square().mean()

    leaves = make((2, 64, 28, 28), (2, 2), torch.bfloat16, layout=layout, device="cuda").leaves()
    compiled = torch.compile(step, fullgraph=True, mode=mode)
    want = torch.autograd.grad(step(*leaves), tuple(leaves))
    for _ in range(3):
        got = torch.autograd.grad(compiled(*leaves), tuple(leaves))
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=2e-2, atol=1e-2 * b.abs().max().item())


def test_autocast_casts_weights_and_sizes_as_the_operator_wants_them() -> None:
    for dtype in DTYPES:
        x, log_weight, sigma = make((2, 4, 5, 6), dtype=dtype, device="cuda")
        fine = weight_dtype(dtype)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = contextpool.pool2d(x, log_weight.bfloat16(), sigma.bfloat16())
        assert torch.equal(y, contextpool.pool2d(x, log_weight.bfloat16().to(fine), sigma.bfloat16().to(fine)))


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_memory_is_a_few_times_the_features(layout: str) -> None:
    """112 x 112: weights between all pairs would be 98 times x."""
    inputs = make((1, 64, 112, 112), dtype=torch.bfloat16, layout=layout, device="cuda")
    dy = torch.ones_like(inputs.x)
    run(inputs, dy)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(inputs, dy)
    assert torch.cuda.max_memory_allocated() - before <= 7 * inputs.x.nbytes  # y, dx and at most five more


@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_more_than_two_to_the_31_elements(layout: str) -> None:
    """The last map of a large batch, against the same map alone."""
    if torch.cuda.mem_get_info()[0] < 40e9:
        pytest.skip("needs 40 GB")
    batch, channels, side = 4, 512, 1030
    x = torch.zeros(batch, channels, side, side, dtype=torch.bfloat16, device="cuda")
    x = laid_out(x, layout)
    assert x.numel() > 2**31
    x[-1] = torch.randn(channels, side, side, dtype=torch.bfloat16, device="cuda")
    log_weight = torch.randn(batch, side, side, device="cuda")
    sigma = torch.rand(batch, side, side, device="cuda")
    got = run(Inputs(x, log_weight, sigma), x)
    want = run(Inputs(x[-1:], log_weight[-1:], sigma[-1:]), x[-1:])
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a[-1:], b)
        assert (a[:-1] == 0).all()
