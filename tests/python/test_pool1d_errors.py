"""Bad input from Python: an error that names the operator, what was expected and what came; zero sizes are no error."""

import pytest
import torch

import contextpool
from pool1d_cases import ALGORITHMS, DTYPES, devices, make, weight_dtype

X, L, S = torch.ones(2, 8, 4), torch.zeros(2, 8), torch.ones(2, 8)

BAD = {
    "x of one dimension": ((X[0, 0], L, S), ("x", "[4]")),
    "log_weight without batch": ((X, L[0], S), ("log_weight", "[2, 8, 4]", "[8]")),
    "sigma without batch": ((X, L, S[0]), ("sigma", "[2, 8, 4]", "[8]")),
    "fewer weights than tokens": ((X, L[:, :7], S), ("log_weight", "7", "8")),
    "more targets than tokens": (
        (X, L, torch.ones(2, 12)),
        ("sigma has 12 targets but x has only 8 tokens", "[2, 8, 4]", "[2, 12]"),
    ),
    "another batch": ((X, torch.zeros(3, 8), S), ("[3, 8]", "[2, 8, 4]")),
    "a batch to broadcast": ((X, L[:1], S), ("[1, 8]", "[2, 8, 4]")),
    "integer features": ((X.long(), L, S), ("x", "float32", "Long")),
    "boolean weights": ((X, L.bool(), S), ("log_weight", "Bool")),
    "integer sizes": ((X, L, S.int()), ("sigma", "Int")),
    "complex features": ((X.to(torch.complex64), L, S), ("x", "Complex")),
    "float64 weights beside float32": ((X, L.double(), S), ("log_weight", "Float", "Double")),
    "float32 sizes beside float64": ((X.double(), L.double(), S), ("sigma", "Double", "Float")),
    "half weights beside half": ((X.bfloat16(), L.bfloat16(), S), ("log_weight", "Float", "BFloat16")),
    "two devices": ((X, L.to("meta"), S), ("device", "cpu", "meta")),
}


@pytest.mark.parametrize("case", BAD, ids=lambda s: s.replace(" ", "_"))
@pytest.mark.parametrize("device", devices())
def test_bad_tensors_are_refused(case: str, device: str) -> None:
    tensors, parts = BAD[case]
    there = [t if t.is_meta else t.to(device) for t in tensors]
    with pytest.raises(RuntimeError) as refusal:
        contextpool.pool1d(*there)
    message = str(refusal.value)
    assert "contextpool::pool1d" in message
    for part in parts:
        assert part.replace("cpu", device) in message


@pytest.mark.parametrize("algorithm", ("fast", "", "Dense", "auto "))
def test_unknown_algorithms_are_refused_with_the_known_ones(algorithm: str) -> None:
    with pytest.raises((RuntimeError, ValueError)) as refusal:
        contextpool.pool1d(X, L, S, algorithm=algorithm)
    assert all(part in str(refusal.value) for part in ("contextpool::pool1d", "algorithm", algorithm, *ALGORITHMS))


def test_arguments_that_are_no_tensors_are_refused() -> None:
    for bad in (None, 1.0, [1.0, 2.0], X.numpy()):
        for tensors in ((bad, L, S), (X, bad, S), (X, L, bad)):
            with pytest.raises((RuntimeError, TypeError), match="pool1d"):
                contextpool.pool1d(*tensors)
    with pytest.raises((RuntimeError, TypeError)):
        contextpool.pool1d(X, L, S, algorithm=3)
    with pytest.raises(TypeError):
        contextpool.pool1d(X, L)
    with pytest.raises(TypeError):
        contextpool.pool1d(X, L, S, window=3)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shape", ((0, 8, 8, 4), (2, 0, 0, 4), (2, 8, 0, 4), (2, 8, 8, 0), (0, 0, 0, 0)), ids=str)
def test_dimensions_of_size_zero(device: str, algorithm: str, shape: tuple[int, int, int, int]) -> None:
    batch, n, m, d = shape
    for dtype in DTYPES:
        fine = weight_dtype(dtype)
        x = torch.ones(batch, n, d, dtype=dtype, device=device, requires_grad=True)
        log_weight = torch.zeros(batch, n, dtype=fine, device=device, requires_grad=True)
        sigma = torch.ones(batch, m, dtype=fine, device=device, requires_grad=True)
        y = contextpool.pool1d(x, log_weight, sigma, algorithm=algorithm)
        assert y.shape == (batch, m, d) and y.dtype == dtype
        y.sum().backward()
        for t in (x, log_weight, sigma):
            assert t.grad.shape == t.shape and (t.grad == 0).all()


@pytest.mark.parametrize("device", devices())
def test_leading_dimensions_of_size_zero(device: str) -> None:
    x = torch.ones(3, 0, 5, 4, device=device)
    y = contextpool.pool1d(x, torch.zeros(3, 0, 5, device=device), torch.ones(3, 0, 2, device=device))
    assert y.shape == (3, 0, 2, 4)


def test_a_refusal_leaves_the_operator_usable() -> None:
    inputs = make((2, 30, 30, 4))
    want = contextpool.pool1d(*inputs)
    with pytest.raises(RuntimeError):
        contextpool.pool1d(inputs.x, inputs.log_weight[:, :3], inputs.sigma)
    assert torch.equal(contextpool.pool1d(*inputs), want)
