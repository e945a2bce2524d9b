"""Finds and loads the C++ library that lies beside this file."""

from pathlib import Path

import torch


def load() -> None:
    path = Path(__file__).parent / "lib" / "libcontextpool_ops.so"
    if not path.exists():
        raise ImportError(f"contextpool: {path} is missing; build it with `make build` or reinstall the package")
    torch.ops.load_library(str(path))
