"""Finds and loads the C++ library that lies beside this file."""

import torch

from . import _build


def load() -> None:
    path = _build.folder_for(torch.__version__) / "lib" / "libcontextpool_ops.so"
    if not path.exists():
        raise ImportError(f"contextpool: {path} is missing; build it with `make build` or reinstall the package")
    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
