"""contextpool.pool1d from Python: accuracy against the formula in plain PyTorch, and the defaults of its door."""

import inspect

import pytest
import torch

import contextpool
from pool1d_cases import ALGORITHMS, DTYPES, INF, NAN, Inputs, check, devices, formula, make

TOKENS = (1, 2, 3, 31, 32, 33, 127, 128, 129, 577, 1000, 4096, 20000)
CHANNELS = (1, 3, 8, 64, 129, 512)
SIZES = ("mixed", "proportional", "log_uniform", "huge", "tiny")
LOGITS = ("equal", "spread_1", "spread_5", "plus_minus_20", "clusters")
MASKS = ("none", "left", "right", "middle", "alternating", "none", "everywhere")
LAYOUTS = ("contiguous", "transposed", "sliced")


def cases() -> list:
    """Every length with every dtype and direction; the rest takes turns, out of step with each other."""
    out = []
    for k, (n, dtype, causal) in enumerate((n, t, c) for n in TOKENS for t in DTYPES for c in (False, True)):
        # The dense formula beside it holds M x N numbers: long rows have few targets here, and few channels.
        m = (1, n if n <= 1000 else 100, max(1, min(n - 1, 2 * n // 3, 70)))[k % 3]
        d = CHANNELS[k % 6] if n <= 1000 else min(64, CHANNELS[k % 6])
        out.append((
            (1 + k % 2, n, m, d), dtype, causal, ALGORITHMS[(k // 3) % 4], SIZES[k % 5], LOGITS[(k // 2) % 5],
            MASKS[(k // 5) % 7], LAYOUTS[(k // 7) % 3],
        ))  # fmt: skip
    return out


def case_name(case: tuple) -> str:
    shape, dtype, causal, *rest = case
    parts = ["x".join(map(str, shape)), str(dtype).removeprefix("torch."), "causal" if causal else "both", *rest]
    return "-".join(parts)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("case", cases(), ids=case_name)
def test_accuracy(case: tuple, device: str) -> None:
    shape, dtype, causal, algorithm, sizes, logits, mask, layout = case
    inputs = make(shape, dtype, device, sizes, logits, mask, layout)
    check(inputs, causal, algorithm)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t).removeprefix("torch."))
def test_accuracy_at_a_contrast_of_forty(device: str, algorithm: str, causal: bool, dtype: torch.dtype) -> None:
    for sizes in ("proportional", "log_uniform", "mixed"):
        check(make((1, 700, 700, 4), dtype, device, sizes, "clusters", seed=3), causal, algorithm)


@pytest.mark.parametrize("device", devices())
def test_example_by_hand(device: str) -> None:
    x = torch.tensor([[1.0], [5.0]], dtype=torch.float64, device=device)
    y = contextpool.pool1d(x, torch.zeros(2).to(x), torch.tensor([1.0, 2.0]).to(x))
    e1, e2 = 0.6065306597126334, 0.8824969025845955  # exp(-1/2), exp(-1/8)
    torch.testing.assert_close(y.flatten().tolist(), [(1 + 5 * e1) / (1 + e1), (5 + e2) / (1 + e2)])


@pytest.mark.parametrize("device", devices())
def test_one_step_of_decoding_is_the_last_row(device: str) -> None:
    inputs = make((2, 300, 300, 16), device=device)
    whole = contextpool.pool1d(*inputs, causal=True)
    step = contextpool.pool1d(inputs.x, inputs.log_weight, inputs.sigma[:, -1:], causal=True)
    torch.testing.assert_close(step, whole[:, -1:], rtol=0, atol=2e-5 * float(inputs.x.abs().max()))


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("size", (5.0, 60.0, 300.0, 2000.0))
def test_few_targets_over_a_long_row(device: str, size: float) -> None:
    """Whether one reads tokens or blocks is a matter of its own size."""
    x, log_weight, sigma = make((1, 6000, 40, 16), torch.float32, device)
    results = []
    for later in (0.5, 40.0, 400.0, 5000.0):
        sigma[:, :20], sigma[:, 20:] = size, later
        check(Inputs(x, log_weight, sigma), True, "auto")
        results.append(contextpool.pool1d(x, log_weight, sigma, causal=True)[:, :20])
    assert all(torch.equal(y, results[0]) for y in results)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("causal", (False, True))
def test_padding_to_a_common_length_changes_nothing(device: str, algorithm: str, causal: bool) -> None:
    """A batch of rows of different length, padded on the right over NaN, against each row alone."""
    whole = make((3, 90, 90, 5), device=device)
    lengths = (90, 41, 7)
    x, log_weight = whole.x.clone(), whole.log_weight.clone()
    for b, length in enumerate(lengths):
        x[b, length:], log_weight[b, length:] = NAN, -INF
    padded = Inputs(x, log_weight, whole.sigma).leaves()
    y = contextpool.pool1d(*padded, causal=causal, algorithm=algorithm)
    dy = torch.zeros_like(y)
    for b, length in enumerate(lengths):
        dy[b, :length] = 1 + torch.arange(length, device=device)[:, None] % 3
    grads = torch.autograd.grad(y, tuple(padded), dy)
    assert all(g.isfinite().all() for g in grads)
    for b, length in enumerate(lengths):
        alone = Inputs(*(t[b, :length] for t in whole)).leaves()
        y_alone = contextpool.pool1d(*alone, causal=causal, algorithm=algorithm)
        assert (y[b, :length] - y_alone).abs().max() < 5e-5
        for g, want in zip(grads, torch.autograd.grad(y_alone, tuple(alone), dy[b, :length]), strict=True):
            assert (g[b, :length] - want).abs().max() <= 1e-4 * max(1.0, float(want.abs().max()))
            assert (g[b, length:] == 0).all()


@pytest.mark.parametrize("threads", (1, 2, 3, 5))
@pytest.mark.parametrize("causal", (False, True))
def test_threads_do_not_show(threads: int, causal: bool) -> None:
    leaves = make((1, 3000, 3000, 32), sizes="mixed", logits="clusters").leaves()

    def bits() -> list[torch.Tensor]:
        y = contextpool.pool1d(*leaves, causal=causal)
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
    schema = torch.ops.contextpool.pool1d.default._schema
    of_schema = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    signature = inspect.signature(contextpool.pool1d)
    of_function = {k: p.default for k, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
    assert of_schema == of_function == {"causal": False, "algorithm": "auto"}
    assert [a.name for a in schema.arguments] == list(signature.parameters)
    assert [a.name for a in schema.arguments if a.kwarg_only] == ["causal", "algorithm"]
    assert str(schema).startswith("contextpool::pool1d(Tensor x, Tensor log_weight, Tensor sigma, *, ")

    inputs = make((2, 50, 50, 4))
    plain = contextpool.pool1d(*inputs)
    assert torch.equal(plain, torch.ops.contextpool.pool1d(*inputs))
    assert torch.equal(plain, contextpool.pool1d(*inputs, False, "auto"))
    assert torch.equal(plain, contextpool.pool1d(*inputs, causal=False, algorithm="auto"))


def test_function_is_documented_and_typed() -> None:
    assert contextpool.pool1d.__doc__ and "sigma" in contextpool.pool1d.__doc__
    parameters = inspect.signature(contextpool.pool1d).parameters.values()
    assert all(p.annotation is not inspect.Parameter.empty for p in parameters)


def test_formula_of_these_tests_is_differentiable_at_its_limits() -> None:
    """The yardstick itself: finite gradients with masks, sizes of nothing and of everything."""
    inputs = make((1, 9, 9, 2), torch.float64, mask="alternating")
    inputs.sigma[0] = torch.tensor([0, -1, 1e-30, 0.3, 1, 50, 1e30, INF, 2.0])
    leaves = inputs.leaves()
    y = formula(*leaves, False)
    grads = torch.autograd.grad(y.sum(), tuple(leaves))
    assert y.isfinite().all() and all(g.isfinite().all() for g in grads)
