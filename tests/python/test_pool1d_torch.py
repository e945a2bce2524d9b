"""pool1d as a citizen of PyTorch: gradcheck, opcheck, compile, export, autocast, meta tensors, second derivatives."""

import itertools
import re
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import contextpool
from pool1d_cases import ALGORITHMS, DTYPES, INF, NAN, Inputs, devices, laid_out, make, weight_dtype

OP = torch.ops.contextpool.pool1d.default
OP_BACKWARD = torch.ops.contextpool._pool1d_backward.default


def leaves_of(inputs: Inputs) -> Inputs:
    return Inputs(*(t.detach().clone().requires_grad_() for t in inputs))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("shape", ((2, 9, 9, 2), (1, 60, 9, 2), (1, 1, 1, 2)), ids=str)
def test_gradcheck(device: str, algorithm: str, causal: bool, shape: tuple[int, int, int, int]) -> None:
    x, log_weight, sigma = make(shape, torch.float64, device)
    # Windows from a token to the whole row, so that every way of summing has its part.
    sigma = torch.linspace(0.4, 1.5 * shape[1], shape[2]).expand_as(sigma).to(sigma)
    pool = partial(contextpool.pool1d, causal=causal, algorithm=algorithm)
    assert torch.autograd.gradcheck(pool, tuple(leaves_of(Inputs(x, log_weight, sigma))))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", (False, True))
def test_gradcheck_with_a_mask_and_sizes_of_nothing(device: str, algorithm: str, causal: bool) -> None:
    x, log_weight, sigma = make((1, 14, 10, 2), torch.float64, device)
    log_weight[:, [0, 5, 6, 13]] = -INF
    sigma[:, [1, 4]] = torch.tensor([0.0, -1.0], dtype=torch.float64, device=device)
    pool = partial(contextpool.pool1d, causal=causal, algorithm=algorithm)
    assert torch.autograd.gradcheck(pool, tuple(leaves_of(Inputs(x, log_weight, sigma))))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t).removeprefix("torch."))
@pytest.mark.parametrize("layout", ("contiguous", "transposed", "sliced"))
def test_opcheck(device: str, dtype: torch.dtype, layout: str) -> None:
    inputs = make((2, 20, 13, 4), dtype, device, layout=layout)
    leaves = Inputs(*(laid_out(t.detach(), layout).requires_grad_() for t in inputs))
    for causal, algorithm in ((False, "auto"), (True, "pyramid")):
        torch.library.opcheck(OP, tuple(leaves), {"causal": causal, "algorithm": algorithm})
        torch.library.opcheck(OP, tuple(inputs), {"causal": causal, "algorithm": algorithm})


@pytest.mark.parametrize("device", devices())
def test_opcheck_of_the_backward(device: str) -> None:
    inputs = make((2, 20, 13, 4), torch.float32, device)
    dy = torch.ones(2, 13, 4, device=device)
    torch.library.opcheck(OP_BACKWARD, (dy, *inputs), {"causal": True, "algorithm": "auto"})


class Names(TorchDispatchMode):
    """The operators of this package that Python sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        if func.namespace == "contextpool":
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", devices())
def test_what_watches_sees_the_operators(device: str) -> None:
    """On CUDA the one that also gives what the forward keeps for the backward, where there will be one."""
    leaves = leaves_of(make((2, 20, 13, 4), torch.float32, device))
    with Names() as names:
        contextpool.pool1d(*leaves).sum().backward()
    forward = "pool1d" if device == "cpu" else "_pool1d_keep"
    assert names.seen == [f"contextpool.{forward}.default", "contextpool._pool1d_backward.default"]
    with torch.no_grad(), Names() as names:
        contextpool.pool1d(*leaves)
    assert names.seen == ["contextpool.pool1d.default"]


def around(x: Tensor, log_weight: Tensor, sigma: Tensor, causal: bool) -> Tensor:
    """pool1d among operations that are exact in any order, so that compiled and eager can be compared to the bit."""
    return contextpool.pool1d(2 * x, log_weight + 1, sigma * 2, causal=causal) * 0.5 + x[..., : sigma.shape[-1], :]


def value_and_gradients(f: object, inputs: Inputs, causal: bool) -> list[Tensor]:
    leaves = leaves_of(inputs)
    y = f(*leaves, causal)
    return [y.detach(), *torch.autograd.grad(y, tuple(leaves), torch.ones_like(y))]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("backend", ("inductor", "aot_eager"))
def test_compiled_equals_eager(device: str, causal: bool, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(around, fullgraph=True, backend=backend)
    for dtype in (torch.float32, torch.bfloat16) if backend == "aot_eager" else (torch.float32,):
        inputs = make((2, 40, 31, 8), dtype, device)
        want = value_and_gradients(around, inputs, causal)
        assert all(map(torch.equal, value_and_gradients(compiled, inputs, causal), want))


@pytest.mark.parametrize("device", devices())
def test_compiled_for_any_length_equals_eager(device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(around, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 40, 40, 8), (3, 55, 55, 4), (2, 90, 90, 8)):
        inputs = make(shape, torch.float32, device)
        want = value_and_gradients(around, inputs, True)
        assert all(map(torch.equal, value_and_gradients(compiled, inputs, True), want))


class Pool(torch.nn.Module):
    def forward(self, x: Tensor, log_weight: Tensor, sigma: Tensor) -> Tensor:
        return contextpool.pool1d(x, log_weight, sigma, causal=True)


@pytest.mark.parametrize("device", devices())
def test_exported_program_holds_the_operator_and_gives_the_same(device: str) -> None:
    inputs = make((2, 30, 30, 4), device=device)
    program = torch.export.export(Pool(), tuple(inputs))
    assert OP in {node.target for node in program.graph.nodes}
    assert torch.equal(program.module()(*inputs), Pool()(*inputs))


@pytest.mark.parametrize("device", devices())
def test_exported_program_takes_any_length(device: str) -> None:
    batch, n = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("n", min=2, max=4096)
    dynamic = {name: {0: batch, 1: n} for name in ("x", "log_weight", "sigma")}
    program = torch.export.export(Pool(), tuple(make((2, 30, 30, 4), device=device)), dynamic_shapes=dynamic)
    for shape in ((2, 30, 30, 4), (5, 77, 77, 4), (1, 1000, 1000, 4)):
        inputs = make(shape, device=device)
        assert torch.equal(program.module()(*inputs), Pool()(*inputs))


@pytest.mark.parametrize("device", devices())
def test_autocast_casts_weights_and_sizes_as_the_operator_wants_them(device: str) -> None:
    for dtype, half in itertools.product(DTYPES, (torch.bfloat16, torch.float16)):
        inputs = make((2, 25, 25, 4), dtype, device)
        fine = weight_dtype(dtype)
        for other in (half, torch.float32, torch.float64):
            given = Inputs(inputs.x, inputs.log_weight.to(other), inputs.sigma.to(other))
            with torch.autocast(device, dtype=half):
                y = contextpool.pool1d(*given)
            assert y.dtype == dtype  # the features keep the dtype they come in
            assert torch.equal(y, contextpool.pool1d(given.x, given.log_weight.to(fine), given.sigma.to(fine)))


@pytest.mark.parametrize("device", devices())
def test_autocast_from_prediction_to_gradient(device: str) -> None:
    """A layer as models use it: bfloat16 predictions, pooled, gradients back in the dtypes of the parameters."""
    torch.manual_seed(0)
    predict = torch.nn.Linear(8, 2).to(device)
    x = torch.randn(2, 30, 8, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        log_weight, size = predict(x).unbind(-1)
        assert log_weight.dtype == torch.bfloat16
        y = contextpool.pool1d(x, log_weight, 3 * size.sigmoid(), causal=True)
    y.square().sum().backward()
    for g in (x.grad, predict.weight.grad, predict.bias.grad):
        assert g.dtype == torch.float32 and g.isfinite().all() and g.abs().sum() > 0


@pytest.mark.parametrize("device", devices())
def test_without_autocast_half_precision_weights_are_refused(device: str) -> None:
    x, log_weight, sigma = make((2, 25, 25, 4), torch.bfloat16, device)
    with pytest.raises(RuntimeError, match="contextpool::pool1d.*log_weight"):
        contextpool.pool1d(x, log_weight.bfloat16(), sigma)


@pytest.mark.parametrize("layout", ("contiguous", "transposed", "sliced"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t).removeprefix("torch."))
def test_meta_tensors_have_the_shape_dtype_and_strides_of_real_ones(layout: str, dtype: torch.dtype) -> None:
    inputs = make((2, 20, 13, 4), dtype, layout=layout)

    def facts(t: Tensor) -> tuple:
        return t.shape, t.dtype, t.stride()

    meta = Inputs(*(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in inputs))
    y, y_meta = OP(*inputs), OP(*meta)
    assert y_meta.is_meta and facts(y_meta) == facts(y) and y.is_contiguous()
    for dy in (torch.ones_like(y), laid_out(torch.ones_like(y), "transposed"), torch.ones(()).to(y).expand(y.shape)):
        dy_meta = torch.empty_strided(dy.shape, dy.stride(), dtype=dy.dtype, device="meta")
        real = OP_BACKWARD(dy, *inputs, causal=False, algorithm="auto")
        fake = OP_BACKWARD(dy_meta, *meta, causal=False, algorithm="auto")
        assert [facts(t) for t in fake] == [facts(t) for t in real]


def test_meta_tensors_are_checked_too() -> None:
    x, log_weight, sigma = (t.to("meta") for t in make((2, 20, 20, 4)))
    with pytest.raises(RuntimeError, match="contextpool::pool1d.*9.*8"):
        contextpool.pool1d(x[:, :8], log_weight[:, :8], sigma[:, :9])


@pytest.mark.parametrize("device", devices())
def test_second_derivatives_are_refused_with_a_reason(device: str) -> None:
    leaves = make((1, 9, 9, 2), device=device).leaves()
    y = contextpool.pool1d(*leaves)
    grads = torch.autograd.grad(y.sum(), tuple(leaves), create_graph=True)
    for g in grads:
        with pytest.raises(RuntimeError, match=re.compile("contextpool::pool1d.*(second derivative|double backward)")):
            torch.autograd.grad(g.sum(), tuple(leaves), retain_graph=True)


@pytest.mark.parametrize("device", devices())
def test_modes_without_gradients(device: str) -> None:
    leaves = make((2, 20, 20, 4), device=device).leaves()
    want = contextpool.pool1d(*leaves)
    assert want.requires_grad
    with torch.no_grad():
        y = contextpool.pool1d(*leaves)
    assert not y.requires_grad and torch.equal(y, want)
    with torch.inference_mode():
        assert torch.equal(contextpool.pool1d(*leaves), want)


@pytest.mark.parametrize("device", devices())
def test_checkpointing_recomputes_the_same_bits(device: str) -> None:
    inputs = make((2, 100, 100, 4), device=device)
    plain = value_and_gradients(around, inputs, True)
    leaves = leaves_of(inputs)
    y = torch.utils.checkpoint.checkpoint(around, *leaves, True, use_reentrant=False)
    grads = torch.autograd.grad(y, tuple(leaves), torch.ones_like(y))
    assert all(map(torch.equal, (y, *grads), plain))


@pytest.mark.parametrize("device", devices())
def test_nan_surfaces(device: str) -> None:
    x, log_weight, sigma = make((1, 60, 60, 3), device=device)
    x[0, 30] = NAN
    y = contextpool.pool1d(x, log_weight, torch.full_like(sigma, 2.0))
    assert y[0, 29:32].isnan().all() and y[0, [0, 59]].isfinite().all()
