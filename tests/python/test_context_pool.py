"""ContextPool against its formulas, and what must not matter: the future, padding, the cache, the batch."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import contextpool
from context_pool_cases import WORDS, combinations, formula_map, formula_row, scattered
from contextpool.nn import ContextPool1d, ContextPool2d, ContextPoolCache

NAN, INF = float("nan"), float("inf")
LOCALITIES = pytest.mark.parametrize("locality", WORDS["locality"])


def assert_same(y: Tensor, expected: Tensor, x: Tensor, module: torch.nn.Module, what: object) -> None:
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-11, msg=lambda m: f"{what}\n{m}")
    dy, leaves = torch.randn_like(y), (x, *module.parameters())
    got, want = (torch.autograd.grad(out, leaves, dy, allow_unused=True) for out in (y, expected))
    for a, b in zip(got, want):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10, msg=lambda m: f"{what}\n{m}")


@LOCALITIES
@pytest.mark.parametrize("causal", (False, True))
def test_rows_follow_the_formula(locality: str, causal: bool) -> None:
    torch.manual_seed(1)
    for options in combinations(1, causal):
        if options["locality"] != locality:
            continue
        pool = scattered(ContextPool1d(4, **options))
        x = torch.randn(2, 37, 4, dtype=torch.float64)
        x[1, 23:] = NAN
        x.requires_grad_()
        p = dict(pool.named_parameters())
        rows = [formula_row(options, p, x[0]), formula_row(options, p, x[1, :23])]
        expected = torch.stack([torch.nn.functional.pad(row, (0, 0, 0, 37 - len(row))) for row in rows])
        assert_same(pool(x, torch.tensor([37, 23])), expected, x, pool, options)


@LOCALITIES
@pytest.mark.parametrize("stride", ((1, 1), (2, 3)), ids=str)
def test_maps_follow_the_formula(locality: str, stride: tuple[int, int]) -> None:
    torch.manual_seed(2)
    for options in combinations(2):
        if options["locality"] != locality:
            continue
        pool = scattered(ContextPool2d(4, stride=stride, **options))
        mask = torch.ones(2, 5, 7, dtype=torch.bool)
        mask[1, 4:], mask[1, :, 5:] = False, False
        x = torch.randn(2, 4, 5, 7, dtype=torch.float64).masked_fill(~mask[:, None], INF).requires_grad_()
        p = dict(pool.named_parameters())
        y = pool(x, mask)
        first, second = formula_map(options, p, x[0], stride), formula_map(options, p, x[1, :, :4, :5], stride)
        second = torch.nn.functional.pad(second, (0, y.shape[3] - second.shape[2], 0, y.shape[2] - second.shape[1]))
        assert_same(y, torch.stack((first, second)), x, pool, options)


def test_parameter_counts() -> None:
    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    assert count(ContextPool1d(512)) == 98_754
    assert count(ContextPool1d(768)) == 147_906
    assert count(ContextPool2d(768)) == 166_346
    assert count(ContextPool1d(512, groups=8)) == 98_754 + 7 * 2 * (64 * 3 + 1)
    assert count(ContextPool1d(512, predictor="attention")) == 2 * 512**2 + 98_754 - (64 * 3 + 1)
    assert count(ContextPool1d(512, weights="uniform", locality="none")) == 0


@pytest.mark.parametrize("length", (1, 10, 32, 4096))
def test_starts_at_the_initial_sigma_at_any_length(length: int) -> None:
    for reference_length in (0, length):
        pool = ContextPool1d(6, reference_length=reference_length)
        for lengths in (None, torch.tensor([length, (length + 1) // 2])):
            windows = pool(torch.randn(2, length, 6), lengths, return_windows=True)[1]
            real = windows.sigma > 0
            torch.testing.assert_close(windows.sigma[real], torch.full_like(windows.sigma, 4)[real])
        for name, parameter in pool.named_parameters():  # a model that knows nothing of sizes draws them all
            torch.nn.init.zeros_(parameter) if name.endswith("bias") else torch.nn.init.normal_(parameter, 0, 0.02)
        windows = pool(torch.randn(2, length, 6), return_windows=True)[1]
        assert (windows.sigma - 4).abs().max() < 0.5


@pytest.mark.parametrize("side", (7, 14, 56))
def test_maps_start_at_the_initial_sigma_at_any_size(side: int) -> None:
    windows = ContextPool2d(6)(torch.randn(1, 6, side, side), return_windows=True)[1]
    torch.testing.assert_close(windows.sigma, torch.full((1, side, side), 0.5))


@pytest.mark.parametrize("make", (
    lambda: (ContextPool1d(8), torch.randn(2, 10, 8)),
    lambda: (ContextPool1d(8), torch.randn(2, 32, 8)),
    lambda: (ContextPool1d(8), torch.randn(2, 4096, 8)),
    lambda: (ContextPool2d(8), torch.randn(2, 8, 7, 7)),
    lambda: (ContextPool2d(8), torch.randn(2, 8, 56, 56)),
))  # fmt: skip
def test_learns_from_the_start_and_calls_its_layers(make: Callable[[], tuple[torch.nn.Module, torch.Tensor]]) -> None:
    torch.manual_seed(4)
    pool, x = make()
    called = []
    for name, layer in pool.predictor.named_children():
        layer.register_forward_hook(lambda layer, inputs, output, name=name: called.append(name))
    (pool(x) * torch.randn_like(x)).mean().backward()
    assert called == ["conv1", "conv2"]
    for parameter in pool.parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0
    assert pool.predictor.conv2.bias.grad[-1].abs() > 1e-8 and pool.predictor.conv2.weight.grad[-1].abs().max() > 1e-8


@pytest.mark.parametrize("size_norm", ("sigmoid", "channels"))
def test_the_papers_sizes_start_at_the_initial_sigma(size_norm: str) -> None:
    for length, sigma in ((2048, 4.0), (100, 4.0), (64, 3.2), (25, 1.25)):
        for lengths in ({"reference_length": length}, {"usual_length": length}):
            pool = ContextPool1d(6, size_norm=size_norm, size_range=0, **lengths)
            for parameters in ("as built", "overwritten"):
                if parameters == "overwritten":
                    scattered(pool, torch.float32).reset_sizes()
                windows = pool(torch.randn(2, length, 6), return_windows=True)[1]
                torch.testing.assert_close(windows.sigma, torch.full((2, length), sigma))
    for side, sigma in ((14, 0.35), (7, 0.175), (40, 0.5)):
        pool = ContextPool2d(6, size_norm=size_norm, size_range=0, usual_length=side)
        windows = pool(torch.randn(1, 6, side, side), return_windows=True)[1]
        torch.testing.assert_close(windows.sigma, torch.full((1, side, side), sigma))


def test_windows_are_what_the_operator_got() -> None:
    torch.manual_seed(3)
    pool = scattered(ContextPool1d(8, groups=2, size_range=0), torch.float32)
    x = torch.randn(2, 30, 8)
    y, (log_weight, sigma) = pool(x, torch.tensor([30, 9]), return_windows=True)
    assert log_weight.shape == sigma.shape == (2, 2, 30)
    assert (log_weight[1, :, 9:] == -INF).all() and (sigma[1, :, 9:] == 0).all()
    assert sigma[0].max() <= 3.0001 and sigma[1].max() <= 0.9001, "r n of each row's own length"
    for group, part in enumerate((slice(0, 4), slice(4, 8))):
        assert torch.equal(contextpool.pool1d(x[..., part], log_weight[:, group], sigma[:, group]), y[..., part])
    none = ContextPool1d(8, weights="nonlocal", locality="none")(torch.randn(2, 9, 8), return_windows=True)[1]
    assert none == (None, None)


def test_no_bit_depends_on_later_tokens() -> None:
    for options in combinations(1, causal=True):
        torch.manual_seed(4)
        pool = scattered(ContextPool1d(8, **options), torch.float32)
        x = torch.randn(2, 40, 8)
        for seen in (1, 17, 39):
            results = []
            for later in (x, x.clone()):
                later[:, seen:] += torch.randn_like(later[:, seen:]) * 5
                leaf = later.clone().requires_grad_()
                y = pool(leaf)[:, :seen]
                (gradient,) = torch.autograd.grad(y.sum(), leaf)
                results.append((y, gradient[:, :seen]))
            assert all(torch.equal(a, b) for a, b in zip(*results)), (options, seen)


def test_steps_give_what_the_whole_row_gives() -> None:
    for options in combinations(1, causal=True):
        torch.manual_seed(5)
        pool = scattered(ContextPool1d(8, **options), torch.float32)
        x = torch.randn(3, 70, 8)  # more than a cache has room for at first
        cache = ContextPoolCache()
        with torch.no_grad():
            y = torch.cat([pool.step(part, cache) for part in x.split([1, 1, 1, 9, 1, 30, 26, 1], 1)], 1)
        assert cache.length == 70
        torch.testing.assert_close(y, pool(x), rtol=1e-5, atol=5e-5, msg=lambda m: f"{options}\n{m}")


def test_padding_changes_nothing() -> None:
    lengths = torch.tensor([45, 20, 1, 0])
    mask = torch.arange(45) < lengths[:, None]
    for options in (*combinations(1), *combinations(1, causal=True)):
        torch.manual_seed(6)
        pool = scattered(ContextPool1d(8, **options), torch.float32)
        x = torch.randn(4, 45, 8)
        padded = x.masked_fill(~mask[..., None], NAN).requires_grad_()
        y = pool(padded, lengths)
        assert torch.equal(y, pool(padded, mask=mask))
        assert (y[~mask] == 0).all()
        for row, n in enumerate(lengths.tolist()):
            alone = pool(x[row : row + 1, :n])[0]
            torch.testing.assert_close(y[row, :n], alone, rtol=1e-5, atol=5e-5, msg=lambda m: f"{options}\n{m}")
        y.square().sum().backward()
        assert all(p.grad.isfinite().all() for p in pool.parameters()), options
        assert padded.grad.isfinite().all() and (padded.grad[~mask] == 0).all()


def test_batch_order_and_size_change_nothing() -> None:
    order = torch.tensor([3, 1, 4, 0, 2])
    for options in (*combinations(1), *combinations(1, causal=True)):
        pool = scattered(ContextPool1d(8, **options), torch.float32)
        x = torch.randn(5, 33, 8)
        y = pool(x)
        torch.testing.assert_close(pool(x[order]), y[order], rtol=1e-5, atol=5e-5)
        torch.testing.assert_close(pool(x[3:4]), y[3:4], rtol=1e-5, atol=5e-5)


REFUSED = {
    "causal needs reference_length": {"causal": True},
    'size_norm "softmax" divides by a sum over the whole row': {
        "causal": True, "reference_length": 9, "size_norm": "softmax"
    },
    'weights "nonlocal" compare whole tokens': {"weights": "nonlocal", "groups": 2},
    'weights "nonlocal" are another name': {"weights": "nonlocal", "predictor": "mlp"},
    'predictor "attention" gives': {"predictor": "attention", "weights": "uniform"},
    'size_norm "channels" is a softmax': {"size_norm": "channels", "weights": "uniform"},
    "groups must divide the 8 features, but is 3": {"groups": 3},
    "kernel must be odd": {"kernel": 4},
    "ratio must be positive": {"ratio": 0},
    "initial_sigma must be finite": {"initial_sigma": float("inf")},
    'did you mean "gaussian"?': {"locality": "gausian"},
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refuses_what_cannot_work(reason: str) -> None:
    with pytest.raises(ValueError, match="^ContextPool1d: .*" + re.escape(reason)):
        ContextPool1d(8, **REFUSED[reason])


def test_refuses_inputs_of_the_wrong_shape() -> None:
    pool, x = ContextPool1d(8), torch.ones(2, 5, 8)
    for arguments in (
        (torch.ones(2, 5, 7),),
        (torch.ones(5, 8),),
        (x, torch.ones(3, dtype=torch.long)),
        (x, torch.ones(2)),
        (x, [5, 6]),
        (x, torch.tensor([5, -1], device="cpu")),  # on a GPU values are not looked at: it would wait for them
        (x, [5]),
        (x, None, torch.ones(2, 5)),
        (x, None, torch.ones(2, 4, dtype=torch.bool)),
        (x, torch.ones(2, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool)),
    ):
        with pytest.raises(ValueError, match="^ContextPool1d: "):
            pool(*arguments)
    with pytest.raises(ValueError, match="step is for causal modules"):
        pool.step(x, ContextPoolCache())
    with pytest.raises(ValueError, match="ContextPool2d: x must be"):
        ContextPool2d(8)(x)


def test_takes_empty_batches() -> None:
    assert ContextPool1d(8)(torch.ones(0, 5, 8)).shape == (0, 5, 8)
    assert ContextPool1d(8)(torch.ones(2, 0, 8)).shape == (2, 0, 8)
    assert ContextPool2d(8, stride=2)(torch.ones(0, 8, 3, 3)).shape == (0, 8, 2, 2)
