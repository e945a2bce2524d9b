"""What a user with a type checker writes: `mypy` (strict, see pyproject.toml) knows every type."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import contextpool
from contextpool.models import LanguageModel, LanguageModelCache, LanguageModelOptions
from contextpool.nn import ContextPool1d, ContextPool2d, ContextPoolCache, TransformerBlock, Windows

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, kind: object) -> object:
        return value


class Layer(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.pool = ContextPool1d(features, causal=True, reference_length=64, dtype=torch.float32, device="cpu")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y, windows = self.pool(x, mask=mask, return_windows=True)
        assert_type(windows, Windows)
        assert_type(windows.sigma, Tensor | None)
        return x + y


def main() -> None:
    layer, x = Layer(8), torch.randn(2, 10, 8)
    mask = torch.ones(2, 10, dtype=torch.int64)
    layer(x, mask).sum().backward()
    assert_type(layer.pool(x), Tensor)
    assert_type(layer.pool(x, [10, 3]), Tensor)
    assert_type(layer.pool(x, key_padding_mask=mask == 0), Tensor)
    cache = ContextPoolCache()
    assert_type(layer.pool.step(x, cache, mask), Tensor)
    cache.crop(4)
    cache.repeat(2)
    cache.select(torch.tensor([0, 1]))

    maps = ContextPool2d(8, stride=2)
    assert_type(maps(torch.randn(2, 8, 6, 6)), Tensor)
    assert_type(maps(torch.randn(2, 8, 6, 6), return_windows=True), tuple[Tensor, Windows])
    assert_type(contextpool.pool1d(x, torch.zeros(2, 10), torch.ones(2, 10), causal=True), Tensor)
    assert_type(TransformerBlock(8, 2, 16, mixer="context_pool", pool={"hidden": 4})(x), Tensor)

    model = LanguageModel(LanguageModelOptions(layers=1, features=8, heads=2, mixer="context_pool"))
    assert_type(model(torch.zeros(1, 5, dtype=torch.int64)), Tensor)
    assert_type(model.step(torch.zeros(1, 5, dtype=torch.int64), LanguageModelCache()), Tensor)


main()
