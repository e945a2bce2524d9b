"""The wheel and the CMake package, used from outside the source tree as a new user would."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
POOL = "contextpool.pool1d(torch.full((1, 9, 2), 3.0), torch.zeros(1, 9), torch.full((1, 9), 2.0))"


def run(*command: str | Path, cwd: Path, ok: bool = True) -> str:
    # A user's shell: nothing of the source tree, the outer make or the test run in its environment.
    hidden = ("PYTHON", "MAKE", "MFLAGS", "CMAKE_PREFIX_PATH", "Torch_DIR")
    env = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert (done.returncode == 0) == ok, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def environment(folder: Path, *visible: Path) -> Path:
    """A new Python environment that sees the given folders of packages; returns its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "visible.pth").write_text("".join(f"{path}\n" for path in visible))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel() -> Path:
    pytest.importorskip("scikit_build_core")
    run("make", "wheel", cwd=ROOT)
    return max((ROOT / "dist").glob("contextpool-*.whl"), key=lambda path: path.stat().st_mtime)


def install(wheel: Path, python: Path) -> None:
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=python.parent)


def test_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", Path(torch.__file__).parents[1])
    install(wheel, python)
    script = f"""
import sys, torch
before = set(sys.modules)
import contextpool
assert contextpool.__file__.startswith({str(tmp_path)!r}), contextpool.__file__
foreign = {{m.split('.')[0] for m in set(sys.modules) - before}} - {{'contextpool'}} - set(sys.stdlib_module_names)
assert not foreign, foreign
assert torch.allclose({POOL}, torch.full((1, 9, 2), 3.0))
assert torch.allclose(contextpool.nn.ContextPool1d(2)(torch.full((1, 9, 2), 3.0)), torch.full((1, 9, 2), 3.0))
gomp = {{line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}}
assert len(gomp) <= 1, gomp
print(contextpool.__version__)
"""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"VERSION {run(python, '-c', script, cwd=tmp_path).strip()} " in cmake


def test_wheel_asks_for_the_torch_it_was_built_with(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    install(wheel, python)
    script = "from importlib.metadata import requires; print(*requires('contextpool'))"
    minor = ".".join(version("torch").split(".")[:2])
    assert run(python, "-c", script, cwd=tmp_path).strip() == f"torch=={minor}.*"


def test_wheel_names_both_versions_beside_another_torch(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "torch"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "2.1.2+cpu"\n')
    python = environment(tmp_path / "env", other.parent)
    install(wheel, python)
    minor = ".".join(torch.__version__.split(".")[:2])
    message = run(python, "-c", "import contextpool", cwd=tmp_path, ok=False).strip().splitlines()[-1]
    assert message.startswith("ImportError: contextpool ")
    assert f"was built for torch {minor}, but torch 2.1.2+cpu is installed; install torch=={minor}.*" in message


def test_wheel_knows_no_path_of_the_machine_it_was_built_on(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    dynamic = run("readelf", "-d", tmp_path / "contextpool/lib/libcontextpool_ops.so", cwd=tmp_path)
    paths = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "RUNPATH" in line or "RPATH" in line]
    assert paths == ["$ORIGIN/../../torch/lib"]


def build_consumer(tmp_path: Path, prefix: Path, ok: bool = True) -> str:
    shutil.copytree(ROOT / "tests/packages/consumer", tmp_path / "consumer")
    return run("cmake", "-S", "consumer", "-B", "out", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
               f"-DPython3_EXECUTABLE={sys.executable}", cwd=tmp_path, ok=ok)  # fmt: skip


def test_a_cmake_project_finds_and_uses_the_installed_package(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    run("cmake", "--install", ROOT / "build", "--prefix", prefix, cwd=tmp_path)
    assert "cp-transformer-12" in run(prefix / "bin/contextpool", "models", cwd=tmp_path)
    build_consumer(tmp_path, prefix)
    run("cmake", "--build", "out", cwd=tmp_path)
    assert "pooled; refused: contextpool::pool1d: " in run("out/consumer", cwd=tmp_path)
    assert "trained; refused: ContextPool1d: causal needs" in run("out/module", cwd=tmp_path)


def test_the_cmake_package_refuses_another_libtorch(tmp_path: Path) -> None:
    prefix, libtorch = tmp_path / "prefix", tmp_path / "libtorch"
    run("cmake", "--install", ROOT / "build", "--prefix", prefix, cwd=tmp_path)
    for name, text in {
        "include/ATen/ATen.h": "",
        "lib/libtorch_cpu.so": "",
        "include/torch/headeronly/version.h": "".join(
            f"#define TORCH_VERSION_{k} {v}\n" for k, v in (("MAJOR", 2), ("MINOR", 1), ("PATCH", 2))
        ),
    }.items():
        (libtorch / name).parent.mkdir(parents=True, exist_ok=True)
        (libtorch / name).write_text(text)
    output = " ".join(build_consumer(tmp_path, f"{libtorch};{prefix}", ok=False).split())
    assert "ContextPool was built for LibTorch" in output and "but this is 2.1.2" in output
