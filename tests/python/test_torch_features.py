"""What of PyTorch works with the modules and what is refused, as docs/module.md says: compiling under autocast,
torch.func, forward-mode and second derivatives, TorchScript, ONNX, checkpointing, hooks and parameters that come and
go."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp

import contextpool
from context_pool_cases import scattered
from contextpool.models import LanguageModel
from contextpool.nn import ContextPool1d, ContextPool2d, Positions, TransformerBlock

D = 8
SMALL = {"vocabulary": 30, "layers": 2, "features": D, "heads": 2, "feedforward": 16, "pool_hidden": 4}
COMPILED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "ContextPool1d": (lambda: ContextPool1d(D), lambda: torch.randn(2, 20, D)),
    "ContextPool1d causal": (lambda: ContextPool1d(D, causal=True, reference_length=20), lambda: torch.randn(2, 20, D)),
    "ContextPool2d": (lambda: ContextPool2d(D, stride=2), lambda: torch.randn(2, D, 6, 6)),
    "TransformerBlock": (
        lambda: TransformerBlock(D, 2, 16, mixer="context_pool", pool={"hidden": 4}),
        lambda: torch.randn(2, 20, D),
    ),
    "LanguageModel": (
        lambda: LanguageModel.from_options({**SMALL, "mixer": "context_pool"}),
        lambda: torch.randint(0, 30, (2, 20)),
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_as_one_graph_under_autocast_forward_and_backward(name: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(1)
    make, inputs = COMPILED[name]
    module, x = make(), inputs()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = []
    for run in (module, compiled):
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x)
        y.float().square().mean().backward()
        results.append([y, *(p.grad.clone() for p in module.parameters())])
    for eager, traced in zip(*results, strict=True):
        assert eager.dtype == traced.dtype
        torch.testing.assert_close(traced, eager, rtol=0.05, atol=0.02 * max(1e-3, eager.abs().max().item()))


def test_a_compiled_pool_takes_masks_of_every_kind() -> None:
    torch.compiler.reset()
    pool, x, mask = scattered(ContextPool1d(D), torch.float32), torch.randn(2, 20, D), torch.ones(2, 20).bool()
    mask[1, 7:] = False
    compiled, expected = torch.compile(pool, fullgraph=True, backend="aot_eager"), pool(x, mask=mask)
    for padding in ({"mask": mask.int()}, {"key_padding_mask": ~mask}, {"lengths": torch.tensor([20, 7])}):
        torch.testing.assert_close(compiled(x, **padding), expected, rtol=1e-5, atol=1e-5)


ROWS = torch.randn(3, 2, 20, D)


def test_vmap_works_without_derivatives() -> None:
    pool, maps, mask = ContextPool1d(D), ContextPool2d(D), torch.rand(3, 2, 20) > 0.3
    x = torch.randn(3, 2, D, 6, 6)
    torch.testing.assert_close(torch.vmap(pool)(ROWS), torch.stack([pool(row) for row in ROWS]))
    torch.testing.assert_close(torch.vmap(maps)(x), torch.stack([maps(one) for one in x]))
    expected = torch.stack([pool(row, mask=some) for row, some in zip(ROWS, mask, strict=True)])
    torch.testing.assert_close(torch.vmap(lambda row, some: pool(row, mask=some))(ROWS, mask), expected)
    lengths = torch.randint(0, 21, (3, 2))
    expected = torch.stack([pool(row, n) for row, n in zip(ROWS, lengths, strict=True)])
    torch.testing.assert_close(torch.vmap(pool)(ROWS, lengths), expected)


@pytest.mark.parametrize("dims", (1, 2))
def test_derivatives_by_torch_func_and_forward_mode_are_refused_by_name(dims: int) -> None:
    pool = ContextPool1d(D) if dims == 1 else ContextPool2d(D)
    x = ROWS[0] if dims == 1 else torch.randn(2, D, 6, 6)
    refused = pytest.raises(NotImplementedError, match=f"contextpool::pool{dims}d: derivatives by torch.func .* use a")
    with refused:
        grad(lambda p: functional_call(pool, p, (x,)).sum())(dict(pool.named_parameters()))
    with refused:
        jvp(pool, (x,), (x,))
    with refused, forward_ad.dual_level():
        pool(forward_ad.make_dual(x, x))


@pytest.mark.parametrize("locality", ("fixed_window", "adaptive_window", "random_sparse"))
def test_what_is_made_of_torchs_operators_has_every_derivative(locality: str) -> None:
    pool = scattered(ContextPool1d(D, locality=locality, reference_length=20))
    x, v = ROWS[0].double(), torch.randn_like(ROWS[0]).double()
    y, tangent = jvp(pool, (x,), (v,))
    leaf = x.clone().requires_grad_()
    dy = torch.randn_like(y)
    (gradient,) = torch.autograd.grad(pool(leaf), leaf, dy, create_graph=True)
    torch.testing.assert_close((gradient * v).sum(), (tangent * dy).sum())
    assert gradient.square().sum().requires_grad
    gradient.square().sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("dims", (1, 2))
def test_second_derivatives_are_refused_by_name(dims: int) -> None:
    pool = ContextPool1d(D) if dims == 1 else ContextPool2d(D)
    x = (ROWS[0] if dims == 1 else torch.randn(2, D, 6, 6)).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(pool(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=f"contextpool::pool{dims}d: the second derivative"):
        gradient.square().sum().backward()


def test_errors_of_the_operators_are_their_own() -> None:
    with pytest.raises(RuntimeError, match="contextpool::pool1d: log_weight has 3 tokens but x has 20"):
        contextpool.pool1d(ROWS[0], torch.zeros(2, 3), torch.ones(2, 20))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_traces_and_says_what_it_cannot() -> None:
    for pool, x in ((ContextPool1d(D), ROWS[0]), (ContextPool2d(D), torch.randn(2, D, 6, 6))):
        file = io.BytesIO()
        torch.jit.save(torch.jit.trace(pool, (x,)), file)
        file.seek(0)
        assert torch.equal(torch.jit.load(file)(x), pool(x))
        for module in (pool, nn.Sequential(pool)):
            with pytest.raises(NotImplementedError, match="torch.jit.script is not supported; use torch.export"):
                torch.jit.script(module)


@pytest.mark.filterwarnings("ignore")
def test_onnx_export_is_refused_by_the_operators_name() -> None:
    """By torch, for want of such an operator in ONNX. This exporter needs no further package to say so."""
    for pool, x in ((ContextPool1d(D), ROWS[0]), (ContextPool2d(D), torch.randn(2, D, 6, 6))):
        with pytest.raises(torch.onnx.errors.UnsupportedOperatorError, match="contextpool::pool[12]d"):
            torch.onnx.export(pool, (x,), io.BytesIO(), dynamo=False)


def small_block() -> tuple[TransformerBlock, Tensor, Tensor]:
    block = scattered(TransformerBlock(D, 2, 16, causal=True, mixer="context_pool", pool={"reference_length": 20}))
    x = ROWS[0].double().requires_grad_()
    return block, x, Positions("rotary", D, 2).rotation(x)


@pytest.mark.parametrize("reentrant", (False, True))
def test_checkpointed_gradients_are_the_same(reentrant: bool) -> None:
    block, x, rotation = small_block()
    leaves = [x, *block.parameters()]
    plain = torch.autograd.grad(block(x, rotation).square().sum(), leaves)
    block.zero_grad()
    x.grad = None
    y = torch.utils.checkpoint.checkpoint(block, x, rotation, use_reentrant=reentrant)
    y.square().sum().backward()
    for leaf, gradient in zip(leaves, plain, strict=True):
        torch.testing.assert_close(leaf.grad, gradient)


def test_hooks_see_and_change_what_passes() -> None:
    block, x, rotation = small_block()
    seen: list[str] = []
    for name, module in block.named_modules():
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
        module.register_full_backward_hook(lambda *_, name=name: seen.append("back " + name))
    block(x, rotation).sum().backward()
    for name in ("context_pool", "context_pool.predictor", "attention", "attention.qkv", "feedforward", ""):
        assert name in seen and "back " + name in seen, name
    block.context_pool.register_forward_hook(lambda module, inputs, y: y * 0)
    torch.testing.assert_close(block(x, rotation), x + block.feedforward(block.norm2(x)))


POOLS = [
    pytest.param(lambda o=options: scattered(ContextPool1d(D, **o)), (2, 20, D), id=f"1d-{word}")
    for word, options in {
        "conv": {},
        "causal": {"causal": True, "reference_length": 20},
        "mlp": {"predictor": "mlp"},
        "groups": {"groups": 2},
        "nonlocal": {"weights": "nonlocal"},
        "paper": {"size_range": 0},
    }.items()
] + [
    pytest.param(lambda o=options: scattered(ContextPool2d(D, **o)), (2, D, 6, 7), id=f"2d-{word}")
    for word, options in {"conv": {}, "mlp": {"predictor": "mlp"}}.items()
]
EACH_POOL = pytest.mark.parametrize(("make", "shape"), POOLS)


def leaves_of(pool: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in pool.named_modules() if list(layer.parameters(recurse=False))}


@EACH_POOL
def test_every_layers_hooks_fire_once(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    pool, seen = make(), []
    for name, layer in leaves_of(pool).items():
        layer.register_forward_hook(lambda *_, name=name: seen.append(name))
    pool(torch.randn(shape).double())
    assert sorted(seen) == sorted(leaves_of(pool))


@EACH_POOL
def test_parameters_may_be_away_between_the_layers_calls(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """As accelerate's cpu_offload does: each layer has its parameters while it is called, and else none."""
    pool, x = make().requires_grad_(False), torch.randn(shape).double()
    expected = pool(x)
    for layer in leaves_of(pool).values():
        kept = dict(layer.named_parameters(recurse=False))

        def put(values: dict[str, Tensor], layer: nn.Module = layer) -> None:
            for name, value in values.items():
                setattr(layer, name, nn.Parameter(value, requires_grad=False))

        away = {name: value.to("meta") for name, value in kept.items()}
        layer.register_forward_pre_hook(lambda *_, put=put, kept=kept: put(kept))
        layer.register_forward_hook(lambda *_, put=put, away=away: put(away))
        put(away)
    torch.testing.assert_close(pool(x), expected)


class Adapted(nn.Module):
    """A layer and its low-rank adapter, built from the layer's own class and attributes as peft's LoRA builds it."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        kind, self.base = type(base), base
        if isinstance(base, nn.Linear):
            self.a, self.b = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
        else:
            one = (1,) * len(base.kernel_size)
            self.a = kind(base.in_channels, 2, base.kernel_size, base.stride, base.padding, bias=False)
            self.b = kind(2, base.out_channels, one, one, bias=False)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


@EACH_POOL
def test_adapters_of_layers_count_and_learn(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    pool, x = make().requires_grad_(False), torch.randn(shape).double()
    expected = pool(x)
    for name, layer in leaves_of(pool).items():
        parent, _, own = name.rpartition(".")
        setattr(pool.get_submodule(parent), own, Adapted(layer).double())
    assert not torch.allclose(pool(x), expected)
    pool(x).square().sum().backward()
    trained = [p for p in pool.parameters() if p.requires_grad]
    assert len(trained) == 2 * len([m for m in pool.modules() if isinstance(m, Adapted)])
    assert all(p.grad.abs().max() > 0 for p in trained)


def test_a_module_built_on_the_meta_device_takes_its_weights_later() -> None:
    block, x, rotation = small_block()
    with torch.device("meta"):
        empty = TransformerBlock(D, 2, 16, causal=True, mixer="context_pool", pool={"reference_length": 20})
    empty.to_empty(device="cpu").double().load_state_dict(block.state_dict())
    assert torch.equal(empty(x, rotation), block(x, rotation))
    with torch.device("meta"):
        assigned = TransformerBlock(D, 2, 16, causal=True, mixer="context_pool", pool={"reference_length": 20})
    assigned.load_state_dict(block.state_dict(), assign=True)
    assert torch.equal(assigned(x, rotation), block(x, rotation))


def test_modules_in_threads_do_not_disturb_each_other() -> None:
    pools, x = [scattered(ContextPool1d(D), torch.float32) for _ in range(4)], [ROWS[0] + k for k in range(4)]
    expected = [pool(row) for pool, row in zip(pools, x, strict=True)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            for a, b in zip(threads.map(lambda pool, row: pool(row), pools, x), expected, strict=True):
                torch.testing.assert_close(a, b)
