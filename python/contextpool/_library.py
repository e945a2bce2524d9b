"""Finds and loads the C++ library that lies beside this file."""

from pathlib import Path

import torch

from . import _build


def load() -> None:
    built, running = (".".join(v.split(".")[:2]) for v in (_build.torch_version, torch.__version__))
    if built != running:  # PyTorch keeps its C++ interface within one minor version only
        raise ImportError(
            f"contextpool {_build.version} was built for torch {built}, but torch {torch.__version__} is installed; "
            f"install torch=={built}.*, or build contextpool again with this torch (`make wheel`)"
        )
    path = Path(__file__).parent / "lib" / "libcontextpool_ops.so"
    if not path.exists():
        raise ImportError(f"contextpool: {path} is missing; build it with `make build` or reinstall the package")
    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
