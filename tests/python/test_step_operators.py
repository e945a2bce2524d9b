"""The operators of a training step as citizens of PyTorch: gradcheck, opcheck, torch.compile in one graph."""

import pytest
import torch
from torch import Tensor

from contextpool import ops
from pool1d_cases import devices

OPS = torch.ops.contextpool


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
