"""Adaptive context pooling (Huang et al., ICML 2022) for PyTorch.

>>> import torch, contextpool
>>> x, log_weight, sigma = torch.randn(2, 100, 64), torch.randn(2, 100), torch.full((2, 100), 4.0)
>>> contextpool.pool1d(x, log_weight, sigma).shape
torch.Size([2, 100, 64])
"""

from ._build import version as __version__
from ._library import load as _load

_load()

from . import models, nn  # noqa: E402  (the operators exist once the library is loaded)
from .ops import pool1d, pool2d  # noqa: E402

__all__ = ["__version__", "models", "nn", "pool1d", "pool2d"]
