import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import packages

ROOT = Path(__file__).resolve().parents[2]

# The device that the tests of modules work on, as tests/device.h has it for C++: the CPU, unless this says otherwise.
if device := os.environ.get("CONTEXTPOOL_TEST_DEVICE"):
    torch.set_default_device(device)
    torch.backends.cudnn.allow_tf32 = False  # tolerances are for float32


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 kB of Python source."""
    path = tmp_path_factory.mktemp("text") / "text"
    subprocess.run([sys.executable, ROOT / "scripts/demo_text.py", path, "200000"], check=True)
    return path


@pytest.fixture(scope="session")
def wheel() -> Path:
    pytest.importorskip("scikit_build_core")
    return packages.build_wheel()


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel, which sees the packages beside this torch."""
    python = packages.environment(tmp_path_factory.mktemp("wheel") / "env", *packages.dependencies())
    packages.install(wheel, python)
    return python


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` makes, in a Python environment whose torch is its own."""
    folder = tmp_path_factory.mktemp("prefix") / "env"
    packages.environment(folder)
    link = next(folder.glob("lib/python*/site-packages")) / "torch"
    link.symlink_to(Path(torch.__file__).parent)
    packages.run("cmake", "--install", packages.BUILD_TREE, "--prefix", folder, cwd=folder)
    return folder
