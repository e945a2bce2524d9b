"""The operators of a training step as citizens of PyTorch: gradcheck, opcheck, torch.compile in one graph."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from contextpool import ops
from pool1d_cases import devices

OPS = torch.ops.contextpool


@pytest.fixture(autouse=True)
def same_numbers_in_every_run() -> None:
    torch.manual_seed(1)


def turns(tokens: int, pairs: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    angle = torch.randn(tokens, pairs, dtype=torch.float64, device=device) * 3
    return angle.cos().to(dtype), angle.sin().to(dtype)


def draw(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=device).requires_grad_()


@pytest.mark.parametrize("device", devices())
def test_gradients_of_rotary(device: str) -> None:
    cos, sin = turns(5, 2, torch.float64, device)
    assert torch.autograd.gradcheck(lambda x: ops.rotary(x, cos, sin), draw(2, 5, 3, 4, device=device))
    assert torch.autograd.gradgradcheck(lambda x: ops.rotary(x, cos, sin), draw(2, 5, 3, 4, device=device))
    assert torch.autograd.gradcheck(lambda x: ops.rotary_qkv(x, cos, sin), draw(2, 5, 3, 2, 4, device=device))
    assert torch.autograd.gradgradcheck(lambda x: ops.rotary_qkv(x, cos, sin), draw(2, 5, 3, 2, 4, device=device))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_opcheck_of_rotary(device: str, dtype: torch.dtype) -> None:
    cos, sin = turns(5, 4, torch.float32, device)
    torch.library.opcheck(OPS.rotary.default, (draw(2, 5, 3, 8, dtype=dtype, device=device), cos, sin))
    qkv = draw(2, 5, 3, 2, 8, dtype=dtype, device=device)
    torch.library.opcheck(OPS.rotary_qkv.default, (qkv, cos, sin))
    parts = [t.detach().clone() for t in qkv.unbind(2)]
    torch.library.opcheck(OPS._rotary_qkv_backward.default, (*parts, cos, sin))


@pytest.mark.parametrize("device", devices())
def test_rotary_compiles_to_one_graph(device: str) -> None:
    cos, sin = turns(5, 4, torch.float32, device)

    def score(qkv: Tensor) -> Tensor:
        q, k, v = ops.rotary_qkv(qkv, cos, sin)
        return (q * k * v).sum() + ops.rotary(qkv, cos, sin).square().sum()

    qkv = draw(2, 5, 3, 2, 8, dtype=torch.float32, device=device)
    other = qkv.detach().clone().requires_grad_()
    torch.compile(score, fullgraph=True, backend="aot_eager")(qkv).backward()
    score(other).backward()
    torch.testing.assert_close(qkv.grad, other.grad)


@pytest.mark.parametrize("device", devices())
def test_gradients_of_add_layer_norm_and_bias_gelu(device: str) -> None:
    x, branch = draw(3, 2, 8, device=device), draw(3, 2, 8, device=device)
    weight, bias = draw(8, device=device), draw(8, device=device)
    assert torch.autograd.gradcheck(ops.add_layer_norm, (x, branch, weight, bias))
    assert torch.autograd.gradcheck(lambda *t: ops.add_layer_norm(*t)[1], (x, branch, weight, bias))
    assert torch.autograd.gradcheck(lambda *t: ops.add_layer_norm(*t)[0], (x, branch, weight, bias))
    assert torch.autograd.gradcheck(ops.bias_gelu, (x, bias))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("narrow", (torch.float32, torch.bfloat16), ids=str)
def test_opcheck_of_add_layer_norm_and_bias_gelu(device: str, narrow: torch.dtype) -> None:
    x, branch = draw(3, 5, 8, dtype=torch.float32, device=device), draw(3, 5, 8, dtype=narrow, device=device)
    weight, bias = (draw(8, dtype=torch.float32, device=device) for _ in range(2))
    torch.library.opcheck(OPS.add_layer_norm.default, (x, branch, weight, bias), {"dtype": narrow})
    torch.library.opcheck(OPS.bias_gelu.default, (branch, bias))
    total, normed, mean, rstd = (t.detach() for t in OPS.add_layer_norm(x, branch, weight, bias, dtype=narrow))
    kept = (total, weight.detach(), mean, rstd)
    other = None if narrow == torch.float32 else narrow
    torch.library.opcheck(OPS._add_layer_norm_backward.default, (total, normed, *kept), {"narrow": other})
    torch.library.opcheck(OPS._add_layer_norm_backward.default, (None, normed, *kept), {"narrow": other})
    torch.library.opcheck(OPS._bias_gelu_backward.default, (normed, branch.detach(), bias.detach()))


@pytest.mark.parametrize("device", devices())
def test_a_second_derivative_is_refused_not_wrong(device: str) -> None:
    x, bias = draw(3, 8, device=device), draw(8, device=device)
    (first,) = torch.autograd.grad(ops.bias_gelu(x, bias).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="_bias_gelu_backward"):
        first.sum().backward()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shape", ((0,), (3, 0), (2, 3, 0), (0, 0), (2, 0, 8), (8,)), ids=str)
def test_bias_gelu_and_add_layer_norm_of_no_features_no_rows_and_one_row(device: str, shape: tuple[int, ...]) -> None:
    x, branch = draw(*shape, device=device), draw(*shape, device=device)
    weight, bias = draw(shape[-1], device=device), draw(shape[-1], device=device)
    inputs = (x, branch, weight, bias)
    total, normed = ops.add_layer_norm(*inputs)
    result = (total * 2 + normed * 3 + ops.bias_gelu(x, bias)).sum()
    for grad, of in zip(torch.autograd.grad(result, inputs), inputs, strict=True):
        assert grad.shape == of.shape and torch.isfinite(grad).all()


def worst(got: Tensor, exact: Tensor) -> float:
    """The largest error, relative to the largest exact value, or to 1: inputs are of order 1, and sums may cancel."""
    assert got.shape == exact.shape and torch.isfinite(got).all()
    if exact.numel() == 0:
        return 0.0
    got, exact = got.detach().double(), exact.detach().double()
    return float((got - exact).abs().max() / exact.abs().max().clamp_min(1))


ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
AWKWARD = ((1, 1), (3, 4), (5, 7), (33, 132), (129, 516), (4097, 64), (70, 768), (2, 1024), (65, 1028), (0, 8))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("stream", (torch.float64, torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("rows,features", AWKWARD)
def test_add_layer_norm_is_the_formula_at_awkward_sizes(
    device: str, stream: torch.dtype, rows: int, features: int
) -> None:
    branches = (stream, torch.bfloat16) if stream == torch.float32 else (stream,)
    for narrow in branches:
        x = (draw(rows, features, dtype=stream, device=device).detach() * 2 + 1).requires_grad_()
        branch = draw(rows, features, dtype=narrow, device=device)
        fine = torch.float64 if stream == torch.float64 else torch.float32
        weight, bias = draw(features, dtype=fine, device=device), draw(features, dtype=fine, device=device)
        inputs = (x, branch, weight, bias)
        total, normed = ops.add_layer_norm(*inputs, dtype=narrow)
        exact = [t.detach().double().requires_grad_() for t in inputs]
        # The norm is that of the sum as it is stored.
        want_total = exact[0] + exact[1]
        stored = want_total + (total.detach().double() - want_total).detach()
        want = torch.nn.functional.layer_norm(stored, (features,), exact[2], exact[3])
        rounding = max(ROUNDING[stream], ROUNDING[narrow])
        assert total.dtype == stream and worst(total, want_total) <= ROUNDING[stream]
        assert normed.dtype == narrow and worst(normed, want) <= rounding
        if features == 1:  # whose norm is its bias: the gradient is rounding alone
            continue
        grads = [torch.randn(rows, features, dtype=t, device=device) for t in (stream, narrow)]
        got = torch.autograd.grad((total, normed), inputs, grads)
        true = torch.autograd.grad((want_total, want), exact, [g.double() for g in grads])
        for a, b, of in zip(got, true, inputs, strict=True):
            assert a.dtype == of.dtype and worst(a, b) <= 4 * rounding


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", tuple(ROUNDING), ids=str)
@pytest.mark.parametrize("rows,features", (*AWKWARD, (2, 4104), (70000, 8)))
def test_bias_gelu_is_the_formula_at_awkward_sizes(device: str, dtype: torch.dtype, rows: int, features: int) -> None:
    x = draw(rows, features, dtype=dtype, device=device)
    bias = draw(features, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=device)
    y = ops.bias_gelu(x, bias)
    exact = [t.detach().double().requires_grad_() for t in (x, bias)]
    want = torch.nn.functional.gelu(exact[0] + exact[1])
    assert y.dtype == dtype and worst(y, want) <= ROUNDING[dtype]
    grad = torch.randn(rows, features, dtype=dtype, device=device)
    got = torch.autograd.grad(y, (x, bias), grad)
    for a, b in zip(got, torch.autograd.grad(want, exact, grad.double()), strict=True):
        assert worst(a, b) <= 4 * ROUNDING[dtype]


@pytest.mark.parametrize("device", devices())
def test_add_layer_norm_reads_what_does_not_start_at_16_bytes(device: str) -> None:
    x = torch.randn(6 * 8 + 1, device=device)[1:].view(6, 8)
    branch = torch.randn(6 * 8 + 3, device=device, dtype=torch.bfloat16)[3:].view(6, 8)
    weight, bias = torch.randn(9, device=device)[1:], torch.randn(9, device=device)[1:]
    for got, want in zip(
        ops.add_layer_norm(x, branch, weight, bias),
        ops.add_layer_norm(x.clone(), branch.clone(), weight.clone(), bias.clone()),
        strict=True,
    ):
        assert torch.equal(got, want)
    assert torch.equal(ops.bias_gelu(branch, bias), ops.bias_gelu(branch.clone(), bias.clone()))


CLASSES = ((1, 1), (5, 2), (3, 7), (9, 256), (33, 259), (8, 264), (1000, 32), (4, 50257), (0, 8))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", tuple(ROUNDING), ids=str)
@pytest.mark.parametrize("rows,classes", CLASSES)
def test_cross_entropy_is_the_formula_at_awkward_sizes(
    device: str, dtype: torch.dtype, rows: int, classes: int
) -> None:
    logits = (4 * torch.randn(rows, classes, device=device)).to(dtype).requires_grad_()
    target = torch.randint(classes, (rows,), device=device)
    target[1::3] = -100
    exact = logits.detach().double().requires_grad_()
    loss = ops.cross_entropy(logits, target)
    want = torch.nn.functional.cross_entropy(exact, target, reduction="none")
    # Losses are float32 whatever the logits are: as they are stored, they are exact.
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(loss.double(), want, rtol=1e-5, atol=1e-5)
    grad = torch.randn(rows, dtype=loss.dtype, device=device)
    (got,) = torch.autograd.grad(loss, logits, grad)
    (true,) = torch.autograd.grad(want, exact, grad.double())
    assert got.dtype == dtype and torch.allclose(got.double(), true, rtol=ROUNDING[dtype], atol=1e-6)


@pytest.mark.parametrize("device", devices())
def test_gradients_of_cross_entropy(device: str) -> None:
    target = torch.tensor([0, 4, -100, 2], device=device)
    logits = draw(4, 5, device=device)
    assert torch.autograd.gradcheck(lambda x: ops.cross_entropy(x, target), logits)
    half = draw(4, 5, dtype=torch.bfloat16, device=device)
    torch.library.opcheck(OPS.cross_entropy.default, (half, target))
    loss, log_sum = OPS.cross_entropy(half.detach(), target)
    torch.library.opcheck(OPS._cross_entropy_backward.default, (loss, half.detach(), target, log_sum))


@pytest.mark.parametrize("device", devices())
def test_cross_entropy_of_extreme_logits(device: str) -> None:
    inf = float("inf")
    rows = [[1e4, -1e4, 0, 0], [-inf, 2, -inf, 1], [inf, inf, inf, 0], [float("nan"), 0, 0, 0]]
    logits = torch.tensor(rows, device=device, requires_grad=True)
    loss = ops.cross_entropy(logits, torch.tensor([0, 1, -100, 0], device=device))
    assert torch.allclose(loss[:3], torch.tensor([0.0, 0.313262, 0.0], device=device), atol=1e-5)
    assert loss[3].isnan()
    loss.sum().backward()
    assert logits.grad is not None and logits.grad[:3].isfinite().all() and (logits.grad[2] == 0).all()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", tuple(ROUNDING), ids=str)
def test_a_target_out_of_range_is_not_scored(device: str, dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 4, dtype=dtype, device=device, requires_grad=True)
    target = torch.tensor([4, 1], device=device)
    if device == "cpu":
        with pytest.raises((RuntimeError, IndexError)):
            ops.cross_entropy(logits, target)
        return
    loss = ops.cross_entropy(logits, target)
    loss.sum().backward()
    assert loss[0].isnan() and loss[1].isfinite()
    assert logits.grad is not None and logits.grad[0].isnan().all() and logits.grad[1].isfinite().all()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("residual", (False, True))
def test_gradients_of_short_convolution(device: str, residual: bool) -> None:
    x, weight, bias = draw(2, 11, 5, device=device), draw(5, 4, device=device), draw(5, device=device)
    for left in (0, 1, 3):
        assert torch.autograd.gradcheck(lambda *t, left=left: ops.short_convolution(*t, left, residual), (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *t: ops.short_convolution(*t, None, 2), (x, weight))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("taps", "left"), ((1, 0), (3, 1), (4, 3), (7, 0), (15, 14), (31, 15), (33, 32)))
@pytest.mark.parametrize(("tokens", "channels"), ((2, 8), (61, 5), (700, 136)))
def test_short_convolution_is_conv1d(
    device: str, dtype: torch.dtype, taps: int, left: int, tokens: int, channels: int
) -> None:
    x, dy = (draw(2, tokens, channels, dtype=dtype, device=device) for _ in range(2))
    weight, bias = draw(channels, taps, dtype=torch.float32, device=device), draw(channels, dtype=torch.float32, device=device)
    leaves = (x, weight, bias)
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    rows = F.pad(doubles[0].transpose(1, 2), (left, taps - 1 - left))
    expected = doubles[0] + F.conv1d(rows, doubles[1].unsqueeze(1), doubles[2], groups=channels).transpose(1, 2)
    y = ops.short_convolution(*leaves, left, residual=True)
    got = (y, *torch.autograd.grad(y, leaves, dy.detach()))
    for one, other in zip(got, (expected, *torch.autograd.grad(expected, doubles, dy.detach().double())), strict=True):
        bound = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[one.dtype]
        assert (one - other).abs().max() <= bound * other.abs().max()


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_opcheck_of_short_convolution(device: str, dtype: torch.dtype) -> None:
    x = draw(2, 11, 5, dtype=dtype, device=device)
    weight, bias = (draw(*s, dtype=torch.float32, device=device) for s in ((5, 4), (5,)))
    torch.library.opcheck(OPS.short_convolution.default, (x, weight, bias), {"left": 3, "residual": True})
    torch.library.opcheck(OPS.short_convolution.default, (x.transpose(0, 1), weight), {"left": 1})


@pytest.mark.parametrize("device", devices())
def test_short_convolution_compiles_to_one_graph(device: str) -> None:
    x, weight = draw(2, 11, 5, device=device), draw(5, 4, device=device)
    compiled = torch.compile(lambda *t: ops.short_convolution(*t, left=3).square().sum(), fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(ops.short_convolution(x, weight, left=3).square().sum(), (x, weight))
    for one, other in zip(torch.autograd.grad(compiled(x, weight), (x, weight)), ours, strict=True):
        torch.testing.assert_close(one, other)


def dynamic_inputs(
    targets: int = 11, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """11 tokens of 5 channels, 4 taps, rank 3."""
    shapes = ((2, 11, 5), (2, targets, 3), (4, 5, 3), (5, 4))
    return tuple(draw(*shape, dtype=dtype, device=device) for shape in shapes)  # type: ignore[return-value]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", tuple(ROUNDING), ids=str)
@pytest.mark.parametrize("targets", (11, 2))
def test_dynamic_convolution_is_the_formula(device: str, dtype: torch.dtype, targets: int) -> None:
    inputs = dynamic_inputs(targets, dtype, device)
    for left in (0, 2, 3):
        x, inner, up, weight = (t.detach().double() for t in inputs)
        want = x[:, -targets:].clone()
        for i in range(targets):
            for k in range(4):
                j = 11 - targets + i - left + k
                if 0 <= j < 11:
                    want[:, i] += (weight[:, k] + inner[:, i] @ up[k].T) * x[:, j]
        y = ops.dynamic_convolution(*inputs, left, True)
        assert y.dtype == dtype and worst(y, want) <= ROUNDING[dtype]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("residual", (False, True))
@pytest.mark.parametrize("targets", (11, 1))
def test_gradients_of_dynamic_convolution(device: str, residual: bool, targets: int) -> None:
    for left in (0, 1, 3):
        assert torch.autograd.gradcheck(
            lambda *t, left=left: ops.dynamic_convolution(*t, left, residual), dynamic_inputs(targets, device=device)
        )


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("targets", (300, 3))
def test_gradients_of_dynamic_convolution_are_those_in_float64(device: str, dtype: torch.dtype, targets: int) -> None:
    shapes = ((2, 300, 200), (2, targets, 15), (4, 200, 15), (200, 4))
    inputs = [draw(*shape, dtype=dtype, device=device) for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    dy = draw(2, targets, 200, dtype=dtype, device=device).detach()
    got = torch.autograd.grad(ops.dynamic_convolution(*inputs, 3, True), inputs, dy)
    want = torch.autograd.grad(ops.dynamic_convolution(*exact, 3, True), exact, dy.double())
    for one, other in zip(got, want, strict=True):
        assert one.dtype == dtype and worst(one, other) <= ROUNDING[dtype]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("taps", (4, 5))  # 5: the kernels for CUDA do not go so far
def test_autocast_changes_nothing_in_dynamic_convolution(device: str, taps: int) -> None:
    shapes = ((2, 30, 24), (2, 30, 15), (taps, 24, 15), (24, taps))
    inputs = [draw(*shape, dtype=torch.float32, device=device) for shape in shapes]

    def results() -> list[Tensor]:
        y = ops.dynamic_convolution(*inputs, taps - 1, True)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    plain = results()
    with torch.autocast(device, torch.bfloat16):
        under = results()
    for got, want in zip(under, plain, strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_opcheck_of_dynamic_convolution(device: str, dtype: torch.dtype) -> None:
    x, inner, up, weight = dynamic_inputs(dtype=torch.float32, device=device)
    x = x.detach().to(dtype).requires_grad_()
    torch.library.opcheck(OPS.dynamic_convolution.default, (x, inner, up, weight), {"left": 3, "residual": True})
    torch.library.opcheck(OPS.dynamic_convolution.default, (x, inner[:, 4:], up, weight), {"left": 1})
    kept = [t.detach() for t in (x, x, inner, up, weight)]
    torch.library.opcheck(OPS._dynamic_convolution_backward.default, tuple(kept), {"left": 3, "residual": True})


@pytest.mark.parametrize("device", devices())
def test_dynamic_convolution_compiles_to_one_graph(device: str) -> None:
    inputs = dynamic_inputs(device=device)

    def score(*t: Tensor) -> Tensor:
        return ops.dynamic_convolution(*t, left=3, residual=True).square().sum()

    compiled = torch.compile(score, fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(score(*inputs), inputs)
    for one, other in zip(torch.autograd.grad(compiled(*inputs), inputs), ours, strict=True):
        torch.testing.assert_close(one, other)
    exported = torch.export.export(Scores(), tuple(t.detach() for t in inputs))
    torch.testing.assert_close(exported.module()(*inputs), score(*inputs))


class Scores(torch.nn.Module):
    def forward(self, x: Tensor, inner: Tensor, up: Tensor, weight: Tensor) -> Tensor:
        return ops.dynamic_convolution(x, inner, up, weight, left=3, residual=True).square().sum()


@pytest.mark.parametrize("device", devices())
def test_dynamic_convolution_says_what_does_not_fit(device: str) -> None:
    x, inner, up, weight = dynamic_inputs(device=device)
    with pytest.raises(RuntimeError, match="contextpool::dynamic_convolution: inner is of rank 2 but up of rank 3"):
        ops.dynamic_convolution(x, inner[..., :2], up, weight, 3)
    with pytest.raises(RuntimeError, match="inner has 11 targets but x has only 7 tokens"):
        ops.dynamic_convolution(x[:, :7], inner, up, weight, 3)
