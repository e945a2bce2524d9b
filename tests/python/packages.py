"""ContextPool as it is installed, for tests from outside the source tree."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import contextpool

ROOT = Path(__file__).resolve().parents[2]
BUILD_TREE = Path(contextpool.__file__).parents[2]  # that the package comes from


def users_environment() -> dict[str, str]:
    """A user's shell: nothing of the source tree, the outer make or the test run in it."""
    hidden = ("PYTHON", "MAKE", "MFLAGS", "CMAKE_PREFIX_PATH", "Torch_DIR", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if not k.startswith(hidden)}


def run(*command: str | Path, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=users_environment(), capture_output=True, text=True,
                          errors="replace")  # fmt: skip
    assert (done.returncode == 0) == ok, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def environment(folder: Path, *visible: Path) -> Path:
    """A new Python environment that sees the given folders of packages; returns its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "visible.pth").write_text("".join(f"{path}\n" for path in visible))
    return folder / "bin" / "python"


def dependencies() -> list[Path]:
    """The folders that this Python's torch, safetensors and pip come from."""
    return list(dict.fromkeys(Path(find_spec(name).origin).parents[1] for name in ("torch", "safetensors", "pip")))


def build_wheel() -> Path:
    run("make", "wheel", cwd=ROOT)
    return max((ROOT / "dist").glob("contextpool-*.whl"), key=lambda path: path.stat().st_mtime)


def install(wheel: Path, python: Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=python.parent)
