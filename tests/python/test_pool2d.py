"""contextpool.pool2d from Python: accuracy against the formula in plain PyTorch, the defaults of its door, and its
place in PyTorch: gradcheck, opcheck, compile, export, autocast, meta tensors, memory formats, errors."""

import inspect
import itertools
import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor

import contextpool
from pool1d_cases import DTYPES, INF, NAN, Inputs, weight_dtype
from pool2d_cases import MAP_ALGORITHMS, check, formula, laid_out, make, out_size, weights

OP = torch.ops.contextpool.pool2d.default
OP_BACKWARD = torch.ops.contextpool._pool2d_backward.default
MAPS = ((1, 1), (1, 9), (6, 1), (2, 3), (7, 5), (16, 13), (17, 31), (28, 28), (33, 20))
STRIDES = ((1, 1), (2, 2), (2, 1), (1, 3), (5, 200))
CHANNELS = (1, 3, 8, 33, 64)
SIZES = ("mixed", "proportional", "log_uniform", "huge", "tiny", "proportional", "mixed")
LOGITS = ("equal", "spread_1", "spread_5", "plus_minus_20", "clusters")
MASKS = ("none", "left", "bottom", "checkered", "none", "everywhere")
LAYOUTS = ("contiguous", "channels_last", "sliced")


def cases() -> list:
    """Every map with every dtype and stride; the rest takes turns, out of step with each other."""
    out = []
    for k, (size, dtype, stride) in enumerate(itertools.product(MAPS, DTYPES, STRIDES)):
        out.append((
            (1 + k % 2, CHANNELS[(k // 2) % 5], *size), stride, dtype, MAP_ALGORITHMS[(k // 4) % 3], SIZES[k % 7],
            LOGITS[(k // 3) % 5], MASKS[(k // 5) % 6], LAYOUTS[(k // 7) % 3],
        ))  # fmt: skip
    return out


def case_name(case: tuple) -> str:
    shape, stride, dtype, *rest = case
    return "-".join(["x".join(map(str, shape)), "s{}x{}".format(*stride), str(dtype).removeprefix("torch."), *rest])


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("case", cases(), ids=case_name)
def test_accuracy(case: tuple) -> None:
    shape, stride, dtype, algorithm, sizes, logits, mask, layout = case
    check(make(shape, stride, dtype, sizes, logits, mask, layout), stride, algorithm)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=dtype_name)
@pytest.mark.parametrize("algorithm", MAP_ALGORITHMS)
def test_accuracy_at_a_contrast_of_forty(algorithm: str, dtype: torch.dtype) -> None:
    for sizes in ("log_uniform", "mixed"):
        check(make((1, 4, 28, 26), (1, 1), dtype, sizes, "clusters", seed=3), (1, 1), algorithm)


@pytest.mark.parametrize("stride", ((1, 1), (2, 2), (2, 1)), ids=str)
def test_accuracy_on_the_maps_of_networks(stride: tuple[int, int]) -> None:
    """The sizes of issue and paper, sizes up to 0.1 of the side: y at some targets against the formula."""
    for side in (56, 112):
        inputs = make((1, 8, side, side), stride, torch.float32, "proportional")
        y = contextpool.pool2d(*inputs, stride).flatten(2)
        ho, wo = out_size(side, side, stride)
        targets = torch.arange(0, ho * wo, 7 * side - 1)
        p = weights(inputs.log_weight.double(), inputs.sigma.double(), stride, targets)
        want = inputs.x.double().flatten(2) @ p.mT
        assert (y[:, :, targets].double() - want).abs().max() <= 1e-5 * inputs.x.abs().max()


def test_example_by_hand() -> None:
    x = torch.tensor([[[[1.0, 2.0], [4.0, 8.0]]]], dtype=torch.float64)
    sigma = torch.tensor([[[1.0, 0.0], [-1.0, INF]]], dtype=torch.float64)
    e = 0.6065306597126334  # exp(-1/2)
    want = [(1 + 2 * e + 4 * e + 8 * e * e) / (1 + 2 * e + e * e), 2.0, 4.0, 3.75]
    torch.testing.assert_close(contextpool.pool2d(x, torch.zeros(1, 2, 2).double(), sigma).flatten().tolist(), want)


def test_a_map_of_one_row_is_pool1d() -> None:
    x, log_weight, sigma = make((2, 5, 1, 40), dtype=torch.float64)
    want = contextpool.pool1d(x[:, :, 0].transpose(1, 2), log_weight[:, 0], sigma[:, 0], algorithm="dense")
    y = contextpool.pool2d(x, log_weight, sigma)
    torch.testing.assert_close(y[:, :, 0].transpose(1, 2), want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("algorithm", MAP_ALGORITHMS)
def test_padding_to_a_common_size_changes_nothing(algorithm: str) -> None:
    """A map padded over NaN on the right and below, against the map alone."""
    small = make((1, 5, 13, 9))
    x, log_weight, sigma = torch.full((1, 5, 20, 16), NAN), torch.full((1, 20, 16), -INF), torch.ones(1, 20, 16)
    x[..., :13, :9], log_weight[:, :13, :9], sigma[:, :13, :9] = small
    padded, alone = Inputs(x, log_weight, sigma).leaves(), small.leaves()
    y, y_alone = (contextpool.pool2d(*t, algorithm=algorithm) for t in (padded, alone))
    dy = torch.zeros_like(y)
    dy[..., :13, :9] = 1
    torch.testing.assert_close(y[..., :13, :9], y_alone, rtol=0, atol=2e-5)
    grads = torch.autograd.grad(y, tuple(padded), dy)
    wants = torch.autograd.grad(y_alone, tuple(alone), torch.ones_like(y_alone))
    for g, want in zip(grads, wants, strict=True):
        torch.testing.assert_close(g[..., :13, :9], want, rtol=0, atol=1e-4)
        assert (g[..., 13:, :] == 0).all() and (g[..., 9:] == 0).all()


@pytest.mark.parametrize("threads", (1, 2, 3, 5))
@pytest.mark.parametrize("batch", (1, 4))
def test_threads_do_not_show(threads: int, batch: int) -> None:
    leaves = make((batch, 16, 40, 33), sizes="mixed", logits="clusters").leaves()

    def bits() -> list[Tensor]:
        y = contextpool.pool2d(*leaves)
        return [y.detach(), *torch.autograd.grad(y, tuple(leaves), torch.ones_like(y))]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = bits()
        torch.set_num_threads(threads)
        assert all(map(torch.equal, bits(), want))
    finally:
        torch.set_num_threads(before)


def test_defaults_of_the_function_and_of_the_schema_agree() -> None:
    schema = OP._schema
    of_schema = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    assert of_schema == {"stride": [1, 1], "algorithm": "auto"}
    assert [a.name for a in schema.arguments if a.kwarg_only] == ["stride", "algorithm"]
    signature = inspect.signature(contextpool.pool2d)
    defaults = {k: p.default for k, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
    assert defaults == {"stride": (1, 1), "algorithm": "auto"}
    assert [a.name for a in schema.arguments] == list(signature.parameters)
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    assert contextpool.pool2d.__doc__ and "channels-last" in contextpool.pool2d.__doc__

    inputs = make((2, 3, 8, 9), (2, 2))
    want = contextpool.pool2d(*inputs, (2, 2), "auto")
    for stride in (2, [2, 2], torch.Size([2, 2])):
        assert torch.equal(contextpool.pool2d(*inputs, stride=stride), want)


# --- in PyTorch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", MAP_ALGORITHMS)
@pytest.mark.parametrize("stride", ((1, 1), (2, 1)), ids=str)
@pytest.mark.parametrize("layout", ("contiguous", "channels_last"))
def test_gradcheck(algorithm: str, stride: tuple[int, int], layout: str) -> None:
    x, log_weight, sigma = make((1, 2, 5, 4), stride, torch.float64)
    log_weight[0, 1, 2] = -INF
    # From a pixel to beyond the map, and none.
    sigma = torch.linspace(0.4, 9, sigma.numel(), dtype=torch.float64).reshape(sigma.shape).clone()
    sigma[0, 0, 1] = -1
    leaves = tuple(laid_out(t, layout).detach().clone().requires_grad_() for t in (x, log_weight, sigma))
    assert torch.autograd.gradcheck(lambda *t: contextpool.pool2d(*t, stride, algorithm), leaves)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(dtype: torch.dtype, layout: str) -> None:
    for stride in ((1, 1), (2, 1)):
        inputs = make((2, 3, 6, 7), stride, dtype, layout=layout)
        options = {"stride": stride, "algorithm": "window"}
        torch.library.opcheck(OP, tuple(t.detach().requires_grad_() for t in inputs), options)
        dy = laid_out(torch.ones(2, 3, *out_size(6, 7, stride), dtype=dtype), layout)
        torch.library.opcheck(OP_BACKWARD, (dy, *inputs), options)


def around(x: Tensor, log_weight: Tensor, sigma: Tensor) -> Tensor:
    """pool2d among operations that are exact in any order, so that compiled and eager can be compared to the bit."""
    return contextpool.pool2d(2 * x, log_weight + 1, sigma * 2, (2, 1)) * 0.5 + x[:, :, ::2]


def value_and_gradients(f: object, inputs: Inputs) -> list[Tensor]:
    leaves = Inputs(*(t.detach().clone().requires_grad_() for t in inputs))
    y = f(*leaves)
    return [y.detach(), *torch.autograd.grad(y, tuple(leaves), torch.ones_like(y))]


@pytest.mark.parametrize(
    ("layout", "backend"), (("channels_last", "inductor"), ("contiguous", "aot_eager"), ("channels_last", "aot_eager"))
)
def test_compiled_equals_eager(layout: str, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(around, fullgraph=True, backend=backend)
    inputs = make((2, 8, 11, 10), (2, 1), layout=layout)
    got, want = value_and_gradients(compiled, inputs), value_and_gradients(around, inputs)
    assert all(map(torch.equal, got, want))
    assert [t.stride() for t in got] == [t.stride() for t in want]


def test_compiled_for_any_size_equals_eager() -> None:
    torch.compiler.reset()
    compiled = torch.compile(around, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 8, 11, 10), (3, 4, 16, 9), (2, 8, 7, 20)):
        inputs = make(shape, (2, 1))
        assert all(map(torch.equal, value_and_gradients(compiled, inputs), value_and_gradients(around, inputs)))


class Pool(torch.nn.Module):
    def forward(self, x: Tensor, log_weight: Tensor, sigma: Tensor) -> Tensor:
        return contextpool.pool2d(x, log_weight, sigma)


def test_exported_program_holds_the_operator_and_takes_any_size() -> None:
    batch, h, w = (torch.export.Dim(name, min=2, max=512) for name in ("batch", "h", "w"))
    dynamic = {"x": {0: batch, 2: h, 3: w}, "log_weight": {0: batch, 1: h, 2: w}, "sigma": {0: batch, 1: h, 2: w}}
    program = torch.export.export(Pool(), tuple(make((2, 3, 6, 7))), dynamic_shapes=dynamic)
    assert OP in {node.target for node in program.graph.nodes}
    for shape in ((2, 3, 6, 7), (4, 3, 9, 30)):
        inputs = make(shape)
        assert torch.equal(program.module()(*inputs), Pool()(*inputs))


def test_autocast_casts_weights_and_sizes_as_the_operator_wants_them() -> None:
    for dtype, half in itertools.product(DTYPES, (torch.bfloat16, torch.float16)):
        x, log_weight, sigma = make((2, 4, 5, 6), dtype=dtype)
        fine = weight_dtype(dtype)
        for other in (half, torch.float32, torch.float64):
            given = log_weight.to(other), sigma.to(other)
            with torch.autocast("cpu", dtype=half):
                y = contextpool.pool2d(x, *given)
            assert y.dtype == dtype  # the features keep the dtype they come in
            assert torch.equal(y, contextpool.pool2d(x, *(t.to(fine) for t in given)))


@pytest.mark.parametrize("shape", ((2, 4, 6, 7), (1, 1, 6, 7), (2, 4, 1, 1), (2, 1, 1, 5), (2, 3, 1, 5)), ids=str)
@pytest.mark.parametrize("layout", (*LAYOUTS, "expanded"))
def test_meta_tensors_have_the_shape_dtype_and_strides_of_real_ones(layout: str, shape: tuple[int, ...]) -> None:
    inputs = make(shape, (2, 1), layout=layout)
    if layout == "expanded":
        inputs = inputs._replace(x=inputs.x[:, :1].expand(shape))

    def facts(t: Tensor) -> tuple:
        return t.shape, t.dtype, t.stride()

    def on_meta(t: Tensor) -> Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    y, y_meta = OP(*inputs, stride=(2, 1)), OP(*map(on_meta, inputs), stride=(2, 1))
    assert y_meta.is_meta and facts(y_meta) == facts(y)
    for dy in (torch.ones_like(y), torch.ones(()).expand(y.shape)):
        real = OP_BACKWARD(dy, *inputs, stride=(2, 1), algorithm="auto")
        fake = OP_BACKWARD(on_meta(dy), *map(on_meta, inputs), stride=(2, 1), algorithm="auto")
        assert [facts(t) for t in fake] == [facts(t) for t in real]


def test_memory_format_of_a_network_passes_through() -> None:
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 12, 12).contiguous(memory_format=torch.channels_last).requires_grad_()
    h = convolution(x)
    y = contextpool.pool2d(h, h[:, 0], 2 * h[:, 1].sigmoid())
    assert y.is_contiguous(memory_format=torch.channels_last) and not y.is_contiguous()
    y.square().sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().sum() > 0


def test_second_derivatives_are_refused_with_a_reason() -> None:
    leaves = make((1, 2, 4, 4)).leaves()
    grads = torch.autograd.grad(contextpool.pool2d(*leaves).sum(), tuple(leaves), create_graph=True)
    for g in grads:
        with pytest.raises(RuntimeError, match=re.compile("contextpool::pool2d.*(second derivative|double backward)")):
            torch.autograd.grad(g.sum(), tuple(leaves), retain_graph=True)


# --- edges and errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ((0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0), (0, 0, 0, 0)), ids=str)
def test_dimensions_of_size_zero(shape: tuple[int, int, int, int]) -> None:
    batch, channels, h, w = shape
    ho, wo = out_size(h, w, (2, 1))
    for dtype in DTYPES:
        fine = weight_dtype(dtype)
        x = torch.ones(shape, dtype=dtype, requires_grad=True)
        log_weight = torch.zeros(batch, h, w, dtype=fine, requires_grad=True)
        sigma = torch.ones(batch, ho, wo, dtype=fine, requires_grad=True)
        y = contextpool.pool2d(x, log_weight, sigma, (2, 1))
        assert y.shape == (batch, channels, ho, wo) and y.dtype == dtype
        y.sum().backward()
        for t in (x, log_weight, sigma):
            assert t.grad.shape == t.shape and (t.grad == 0).all()


def test_a_large_map_takes_memory_of_a_few_times_its_features() -> None:
    """112 x 112: weights between all pairs would be 98 times x (at 32 channels)."""
    code = """
import torch, contextpool
from pathlib import Path
def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(s.split()[1]) for s in lines if s.startswith(field))
def step(side):
    leaves = [torch.randn(1, 32, side, side), torch.randn(1, side, side), 5 * torch.rand(1, side, side)]
    for t in leaves:
        t.requires_grad_()
    dy = torch.ones(1, 32, side, side)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    torch.autograd.grad(contextpool.pool2d(*leaves), leaves, dy)
    return (memory("VmHWM") - before) / leaves[0].nbytes
step(30)
print(step(112))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 10


X, L, S = torch.ones(2, 4, 8, 6), torch.zeros(2, 8, 6), torch.ones(2, 8, 6)
BAD = {
    "x of three dimensions": ((X[0], L, S), {}, ("x", "[4, 8, 6]")),
    "log_weight without batch": ((X, L[0], S), {}, ("log_weight", "[2, 4, 8, 6]", "[8, 6]")),
    "log_weight transposed": ((X, L.mT, S), {}, ("log_weight is a map of 6 x 8 but x is one of 8 x 6",)),
    "another batch": ((X, L[:1], S), {}, ("[1, 8, 6]", "[2, 4, 8, 6]")),
    "sigma for another stride": ((X, L, S), {"stride": (2, 1)}, ("sigma has 8 x 6 targets", "has 4 x 6")),
    "stride of zero": ((X, L, S), {"stride": (0, 1)}, ("stride", "[0, 1]")),
    "stride of three": ((X, L, S), {"stride": (1, 1, 1)}, ("stride",)),
    "integers": ((X.int(), L, S), {}, ("x", "Int")),
    "float64 weights": ((X, L.double(), S), {}, ("log_weight", "Float", "Double")),
    "two devices": ((X, L.to("meta"), S), {}, ("device", "cpu", "meta")),
    "unknown algorithm": ((X, L, S), {"algorithm": "fast"}, ('must be "auto", "dense" or "window"', "fast")),
    "pyramid": ((X, L, S), {"algorithm": "pyramid"}, ("pyramid", "sequences", '"window"')),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_a_reason(what: str) -> None:
    tensors, options, parts = BAD[what]
    with pytest.raises((RuntimeError, ValueError, TypeError)) as error:
        contextpool.pool2d(*tensors, **options)
    message = str(error.value)
    assert "contextpool::pool2d" in message
    for part in parts:
        assert part in message, message


def test_formula_of_these_tests_is_a_convolution_where_all_is_equal() -> None:
    """The yardstick itself, against a Gaussian blur with its weights normalised at the borders."""
    side, sigma = 15, 1.3
    x = torch.randn(1, 1, side, side, dtype=torch.float64)
    t = torch.arange(-14, 15).double()
    kernel = torch.exp(-t * t / (2 * sigma**2))
    kernel = (kernel[:, None] * kernel).masked_fill(t[:, None] ** 2 + t**2 > 160 * sigma**2, 0)[None, None]
    blur = torch.nn.functional.conv2d(x, kernel, padding=14)
    blur = blur / torch.nn.functional.conv2d(torch.ones_like(x), kernel, padding=14)
    equal, size = torch.zeros(1, side, side).double(), torch.full((1, side, side), sigma).double()
    torch.testing.assert_close(formula(x, equal, size, (1, 1)), blur)
    torch.testing.assert_close(contextpool.pool2d(x, equal, size), blur)
