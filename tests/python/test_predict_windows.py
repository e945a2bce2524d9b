"""The operator predict_windows: the predictor as PyTorch's convolutions compute it, in float64, and as a citizen of PyTorch;
and where the module takes it instead of calling its layers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from context_pool_cases import scattered
from contextpool import ops
from contextpool.nn import ContextPool1d
from contextpool.nn._predictor import Predictor
from pool1d_cases import devices

OPS = torch.ops.contextpool
SIZES = {"size_range": 2.0, "shift": -0.5, "least": 0.25, "span": 12.0}


def inputs(
    batch: int, tokens: int, hidden: int, taps: int, channels: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)

    def draw(*shape: int, of: torch.dtype) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(device, of).requires_grad_()

    parameter_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return (
        draw(batch, tokens, taps * hidden, of=dtype),
        draw(hidden, of=parameter_dtype),
        draw(channels, hidden, taps, of=parameter_dtype),
        draw(channels, of=parameter_dtype),
    )


def formula(
    product: Tensor, bias: Tensor, weight: Tensor, out_bias: Tensor, left: int, sizes: int, **size_map: float
) -> tuple[Tensor, Tensor]:
    """Both layers as convolutions of padded rows; the first with the identity, tap by tap, as its weights."""
    hidden, taps = weight.shape[1:]

    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return F.conv1d(F.pad(x, (left, taps - 1 - left)), w)

    identity = torch.zeros(hidden, taps * hidden, taps, dtype=product.dtype, device=product.device)
    for k in range(taps):
        identity[:, k * hidden : (k + 1) * hidden, k] = torch.eye(hidden)
    h = F.gelu(convolve(product.transpose(1, 2), identity) + bias[:, None])
    u = convolve(h, weight)
    split = [weight.shape[0] - sizes, sizes]
    weights, of_sizes = u.split(split, 1)
    learnt_weights, learnt = out_bias[:, None].split(split)
    reach = size_map.get("size_range", 0.0)
    moved = reach * torch.tanh(of_sizes / reach) if reach > 0 else of_sizes
    share = torch.sigmoid(size_map.get("shift", 0.0) + learnt + moved)
    return weights + learnt_weights, size_map.get("least", 0.0) + size_map.get("span", 1.0) * share


def with_gradients(f, leaves: tuple[Tensor, ...], *args, **size_map: float) -> list[Tensor]:  # type: ignore[no-untyped-def]
    results = f(*leaves, *args, **size_map)
    torch.manual_seed(2)
    score = sum((r * torch.randn(r.shape, dtype=torch.float64).to(r)).sum() for r in results)
    return [*(r.detach() for r in results), *torch.autograd.grad(score, leaves)]


CASES = (
    # batch, tokens, hidden, taps, left, channels, sizes
    (2, 70, 64, 3, 2, 2, 1),
    (2, 33, 64, 3, 1, 16, 8),
    (1, 2, 16, 4, 3, 2, 1),
    (3, 50, 24, 1, 0, 4, 2),
    (1, 40, 64, 3, 2, 32, 16),
    (2, 20, 20, 5, 4, 3, 3),  # sizes that the kernels are not made for
    (2, 9, 8, 2, 1, 2, 0),
)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size_map", ({}, SIZES), ids=("free", "bounded"))
def test_is_the_predictor_of_two_convolutions(
    device: str, dtype: torch.dtype, case: tuple[int, ...], size_map: dict[str, float]
) -> None:
    batch, tokens, hidden, taps, left, channels, sizes = case
    leaves = inputs(batch, tokens, hidden, taps, channels, dtype, device)
    exact = tuple(t.detach().cpu().double().requires_grad_() for t in leaves)
    ours = with_gradients(ops.predict_windows, leaves, left, sizes, **size_map)
    wanted = with_gradients(formula, exact, left, sizes, **size_map)
    for got, want in zip(ours, wanted, strict=True):
        largest = want.abs().max().item() if want.numel() else 0.0
        allowed = {torch.float64: 1e-13, torch.float32: 1e-5}.get(got.dtype, torch.finfo(got.dtype).eps)
        torch.testing.assert_close(got.cpu().double(), want, rtol=allowed, atol=allowed * max(largest, 1e-3))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("case", CASES, ids=str)
def test_autocast_changes_nothing(device: str, case: tuple[int, ...]) -> None:
    batch, tokens, hidden, taps, left, channels, sizes = case
    leaves = inputs(batch, tokens, hidden, taps, channels, torch.bfloat16, device)
    plain = with_gradients(ops.predict_windows, leaves, left, sizes, **SIZES)
    with torch.autocast(device, torch.bfloat16):
        under = with_gradients(ops.predict_windows, leaves, left, sizes, **SIZES)
    for got, want in zip(under, plain, strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("device", devices())
def test_gradcheck(device: str) -> None:
    leaves = inputs(2, 6, 8, 3, 4, torch.float64, device)
    for left in range(3):
        assert torch.autograd.gradcheck(lambda *t, left=left: ops.predict_windows(*t, left, 2, **SIZES), leaves)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_causal_bits_depend_on_no_later_token(device: str, dtype: torch.dtype) -> None:
    leaves = inputs(2, 100, 64, 3, 4, dtype, device)
    changed = leaves[0].detach().clone()
    changed[:, 60:] = float("nan")
    for ours, other in zip(
        ops.predict_windows(*leaves, 2, 2), ops.predict_windows(changed, *leaves[1:], 2, 2), strict=True
    ):
        assert torch.equal(ours[..., :60], other[..., :60])
        assert other[..., 60:].isnan().all()
    short = ops.predict_windows(leaves[0][1:, :60], *leaves[1:], 2, 2)
    whole = ops.predict_windows(*leaves, 2, 2)
    if device == "cuda":  # on the CPU PyTorch's products are in between
        assert all(torch.equal(a[0], b[1, :, :60]) for a, b in zip(short, whole, strict=True))


@pytest.mark.parametrize("device", devices())
def test_opcheck(device: str) -> None:
    leaves = inputs(2, 10, 16, 3, 4, torch.float32, device)
    scalars = (2, 2, 2.0, -0.5, 0.25, 12.0)
    torch.library.opcheck(OPS.predict_windows.default, (*leaves, *scalars))
    fixed = tuple(t.detach() for t in leaves)
    log_weight, sigma, u = OPS.predict_windows(*fixed, *scalars)
    torch.library.opcheck(
        OPS._predict_windows_backward.default, (log_weight, sigma, *fixed, u, 2, 2.0, -0.5, 0.25, 12.0)
    )


@pytest.mark.parametrize("device", devices())
def test_compiles_to_one_graph(device: str) -> None:
    leaves = inputs(2, 10, 16, 3, 4, torch.float32, device)

    def score(*tensors: Tensor) -> Tensor:
        log_weight, sigma = ops.predict_windows(*tensors, left=2, sizes=2, **SIZES)
        return (log_weight * sigma).sum()

    ours = torch.autograd.grad(score(*leaves), leaves)
    compiled = torch.compile(score, fullgraph=True, backend="aot_eager")
    for a, b in zip(ours, torch.autograd.grad(compiled(*leaves), leaves), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("device", devices())
def test_refuses_what_does_not_fit(device: str) -> None:
    product, bias, weight, out_bias = inputs(2, 10, 16, 3, 4, torch.float32, device)
    for wrong, said in (
        ((product[0], bias, weight, out_bias, 2, 2), "expected product"),
        ((product[..., 1:], bias, weight, out_bias, 2, 2), "47 features"),
        ((product, bias[1:], weight, out_bias, 2, 2), "bias has 15 hidden"),
        ((product, bias, weight, out_bias[1:], 2, 2), "out_bias has 3 channels"),
        ((product, bias, weight, out_bias, 3, 2), "left is 3"),
        ((product, bias, weight, out_bias, -1, 2), "left is -1"),
        ((product, bias, weight, out_bias, 2, 5), "sizes is 5"),
        ((product, bias, weight, out_bias, 2, -1), "sizes is -1"),
        ((product.int(), bias, weight, out_bias, 2, 2), "product must be"),
    ):
        with pytest.raises(RuntimeError, match=f"contextpool::predict_windows: .*{said}"):
            ops.predict_windows(*wrong)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("shape", ((0, 5), (2, 0)), ids=str)
def test_of_no_tokens(device: str, shape: tuple[int, int]) -> None:
    leaves = inputs(*shape, 16, 3, 4, torch.float32, device)
    log_weight, sigma = ops.predict_windows(*leaves, 2, 2)
    (log_weight.sum() + sigma.sum()).backward()
    assert log_weight.shape == sigma.shape == (shape[0], 2, shape[1])
    assert all(t.grad is not None and not t.grad.any() for t in leaves)


# The module asks for CUDA. Everything else about it can be tested anywhere.
def take_the_operator(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that has an entry for each time that the operator was taken."""
    taken: list[int] = []

    def has_windows(self: Predictor, x: Tensor, padded: Tensor | None) -> bool:
        taken.extend([x.shape[1]] * (padded is None and self._is_for_operator()))
        return padded is None and self._is_for_operator()

    monkeypatch.setattr(Predictor, "has_windows", has_windows)
    return taken


def results_of(pool: nn.Module, x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    y = pool(leaf)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [leaf, *pool.parameters()])]


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    "options",
    (
        {},
        {"groups": 4},
        {"size_range": 0.0},
        {"weights": "uniform"},
        {"weights": "unnormalized"},
        {"predictor": "mlp", "groups": 2},
        {"predictor": "attention"},
        {"kernel": 5, "hidden": 20},
    ),
    ids=str,
)
def test_the_module_gives_the_same_by_the_operator(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], causal: bool
) -> None:
    pool = ContextPool1d(16, causal=causal, reference_length=30 if causal else 0, **options)
    pool, x = scattered(pool, torch.float64), torch.randn(2, 20, 16, dtype=torch.float64)
    by_layers = results_of(pool, x)
    taken = take_the_operator(monkeypatch)
    for got, want in zip(results_of(pool, x), by_layers, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
    assert taken == [20]


@pytest.mark.parametrize("what", ("hook", "parametrization", "forward", "layer", "padding", "locality"))
def test_the_module_calls_its_layers_where_more_hangs_on_it(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    pool = ContextPool1d(16, locality="adaptive_window" if what == "locality" else "gaussian")
    x, layer, calls = torch.randn(2, 20, 16), pool.predictor.conv1, list[str]()
    if what == "hook":
        layer.register_forward_hook(lambda *_: calls.append("hook"))
    elif what == "parametrization":
        nn.utils.parametrizations.weight_norm(layer)
    elif what == "forward":  # as accelerate does
        original = layer.forward
        layer.forward = lambda of: (calls.append("forward"), original(of))[1]
    elif what == "layer":  # as adapters do
        pool.predictor.conv1 = nn.Sequential(layer)
    want = pool(x)
    before, taken = list(calls), take_the_operator(monkeypatch)
    y = pool(x, lengths=[20, 20]) if what == "padding" else pool(x)
    assert not taken and calls == 2 * before
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("reference_length", (0, 30))
def test_a_traced_module_serves_other_lengths(monkeypatch: pytest.MonkeyPatch, reference_length: int) -> None:
    pool = ContextPool1d(16, reference_length=reference_length)
    taken = take_the_operator(monkeypatch)
    with torch.no_grad():
        traced = torch.jit.trace(pool, torch.randn(2, 20, 16), check_trace=False)
        x = torch.randn(2, 50, 16)
        torch.testing.assert_close(traced(x), pool(x), rtol=1e-5, atol=1e-5)
    assert (20 in taken) == bool(reference_length)


@pytest.mark.parametrize("bfloat16", (False, True))
def test_the_module_compiles_with_the_operator(monkeypatch: pytest.MonkeyPatch, bfloat16: bool) -> None:
    pool, x = ContextPool1d(16, causal=True, reference_length=30, groups=2), torch.randn(2, 20, 16)
    taken = take_the_operator(monkeypatch)
    torch.compiler.reset()

    def call(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            y = run(x)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), [*pool.parameters()])]

    eager, compiled = call(pool), call(torch.compile(pool, fullgraph=True, backend="aot_eager"))
    assert taken
    for got, want in zip(compiled, eager, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
