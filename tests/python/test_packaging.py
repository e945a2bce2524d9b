"""The wheel and the CMake package, used from outside the source tree as a new user would."""

import re
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import torch

from packages import ROOT, dependencies, environment, install, run

POOL = "contextpool.pool1d(torch.full((1, 9, 2), 3.0), torch.zeros(1, 9), torch.full((1, 9), 2.0))"


def test_wheel_works_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    script = f"""
import sys, torch
before = set(sys.modules)
import contextpool
assert contextpool.__file__.startswith({str(installed.parents[1])!r}), contextpool.__file__
foreign = {{m.split('.')[0] for m in set(sys.modules) - before}} - {{'contextpool'}} - set(sys.stdlib_module_names)
assert not foreign, foreign
assert torch.allclose({POOL}, torch.full((1, 9, 2), 3.0))
assert torch.allclose(contextpool.nn.ContextPool1d(2)(torch.full((1, 9, 2), 3.0)), torch.full((1, 9, 2), 3.0))
gomp = {{line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line}}
assert len(gomp) <= 1, gomp
print(contextpool.__version__)
"""
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert f"VERSION {run(installed, '-c', script, cwd=tmp_path).strip()} " in cmake


def test_wheel_trains_a_model_that_python_loads(installed: Path, text: Path, tmp_path: Path) -> None:
    command = installed.parent / "contextpool"
    run(command, "train", "--preset", "tiny", "--data", text, "--steps", "3", "--run", "tiny", cwd=tmp_path)
    script = """
import torch
from contextpool.models import LanguageModel
print(tuple(LanguageModel.load("tiny")(torch.tensor([list(b"def main(argv):")])).shape))
"""
    assert run(installed, "-c", script, cwd=tmp_path).strip() == "(1, 15, 256)"
    options = ["generate", "--run", "tiny", "--prompt", "def ", "--tokens", "9"]
    assert run(command, *options, cwd=tmp_path) == run(installed, "-m", "contextpool", *options, cwd=tmp_path)
    assert "unknown subcommand" in run(installed, "-m", "contextpool", "trane", cwd=tmp_path, ok=False)


def test_wheel_says_what_it_is_and_needs(installed: Path, tmp_path: Path) -> None:
    says = run(sys.executable, "-m", "pip", "--python", installed, "check", cwd=tmp_path)
    assert "No broken requirements found" in says
    script = """
from importlib.metadata import metadata, requires
about = metadata("contextpool")
print(*requires("contextpool"))
assert about["Author"] and about["Summary"] and about["Keywords"] and about["License-Expression"] == "MIT"
assert "Typing :: Typed" in about.get_all("Classifier")
assert about["Description-Content-Type"] == "text/markdown"
"""
    minor = ".".join(version("torch").split(".")[:2])
    assert run(installed, "-c", script, cwd=tmp_path).strip() == f"torch=={minor}.* safetensors>=0.4"


def test_wheel_names_both_versions_beside_another_torch(wheel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "torch"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "2.1.2+cpu"\n')
    (other.parent / "torch-2.1.2.dist-info").mkdir()
    (other.parent / "torch-2.1.2.dist-info/METADATA").write_text("Name: torch\nVersion: 2.1.2+cpu\n")
    python = environment(tmp_path / "env", other.parent)
    install(wheel, python)
    minor = ".".join(torch.__version__.split(".")[:2])
    expected = f"was built for torch {minor}, but torch 2.1.2+cpu is installed; install torch=={minor}.*"
    message = run(python, "-c", "import contextpool", cwd=tmp_path, ok=False).strip().splitlines()[-1]
    assert message.startswith("ImportError: contextpool ") and expected in message
    assert expected in run(python.parent / "contextpool", "models", cwd=tmp_path, ok=False)


def run_paths(binary: Path) -> list[str]:
    dynamic = run("readelf", "-d", binary, cwd=binary.parent)
    lines = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "RUNPATH" in line or "RPATH" in line]
    return [path for line in lines for path in line.split(":")]


def test_wheel_knows_no_path_of_the_machine_it_was_built_on(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    assert run_paths(tmp_path / "contextpool/lib/libcontextpool_ops.so") == ["$ORIGIN/../../torch/lib"]
    assert run_paths(tmp_path / "contextpool/bin/contextpool") == ["$ORIGIN/../lib", "$ORIGIN/../../torch/lib"]


def build_consumer(tmp_path: Path, prefix: Path | str, *options: str, ok: bool = True) -> str:
    shutil.copytree(ROOT / "tests/packages/consumer", tmp_path / "consumer")
    said = run("cmake", "-S", "consumer", "-B", "out", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
               f"-DPython3_EXECUTABLE={sys.executable}", *options, cwd=tmp_path, ok=ok)  # fmt: skip
    return " ".join(said.split())


def test_installed_program_uses_the_torch_of_the_environment_it_is_in(prefix: Path, tmp_path: Path) -> None:
    program = prefix / "bin/contextpool"
    assert "cp-transformer-12" in run(program, "models", cwd=tmp_path)
    libraries = run("ldd", program, cwd=tmp_path)
    assert f"{prefix}/bin/../lib/python" in libraries and str(ROOT) not in libraries, libraries


def test_a_cmake_project_finds_and_uses_the_installed_package(prefix: Path, tmp_path: Path) -> None:
    build_consumer(tmp_path, prefix)
    run("cmake", "--build", "out", cwd=tmp_path)
    assert "pooled; refused: contextpool::pool1d: " in run("out/consumer", cwd=tmp_path)
    assert "trained, saved and loaded; refused: ContextPool1d: causal needs" in run("out/library", cwd=tmp_path)


def test_the_cmake_package_names_its_components(prefix: Path, tmp_path: Path) -> None:
    said = build_consumer(tmp_path, prefix, "-DCOMPONENTS=nn;vision", ok=False)
    assert "ContextPool has no component vision: there are ops base nn io models data runtime eval tasks train" in said


def test_installed_headers_need_nothing_but_torch(prefix: Path) -> None:
    own = {path.relative_to(prefix / "include").as_posix() for path in (prefix / "include/contextpool").rglob("*.h")}
    lines = [line for name in own for line in (prefix / "include" / name).read_text().splitlines()]
    needed = {line.split()[1].strip('<>"') for line in lines if line.startswith("#include")}
    foreign = {name for name in needed - own if "." in name and not name.startswith(("torch/", "ATen/", "c10/"))}
    assert not foreign


def test_the_cmake_package_refuses_another_libtorch(prefix: Path, tmp_path: Path) -> None:
    libtorch = tmp_path / "libtorch"
    for name, text in {
        "include/ATen/ATen.h": "",
        "lib/libtorch_cpu.so": "",
        "include/torch/headeronly/version.h": "".join(
            f"#define TORCH_VERSION_{k} {v}\n" for k, v in (("MAJOR", 2), ("MINOR", 1), ("PATCH", 2))
        ),
    }.items():
        (libtorch / name).parent.mkdir(parents=True, exist_ok=True)
        (libtorch / name).write_text(text)
    output = build_consumer(tmp_path, f"{libtorch};{prefix}", ok=False)
    assert "ContextPool was built for LibTorch" in output and "but this is 2.1.2" in output


def as_if_built_for(minor: str, wheel: Path, folder: Path) -> Path:
    """A copy of the wheel that says it was built for another torch."""
    folder.mkdir()
    with ZipFile(wheel) as old, ZipFile(folder / wheel.name, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename == "contextpool/_build.py":
                data = re.sub(rb'torch_version = "[^"]*"', f'torch_version = "{minor}.0"'.encode(), data)
            if info.filename.endswith("METADATA"):
                data = re.sub(rb"torch==[0-9.]+\*", f"torch=={minor}.*".encode(), data)
            new.writestr(info, data)
    return folder / wheel.name


def test_one_wheel_serves_several_torches(wheel: Path, tmp_path: Path) -> None:
    """Its first library is for a torch that is not here, so only the second can be what is loaded and run."""
    major, minor = version("torch").split(".")[:2]
    other = as_if_built_for(f"{major}.{int(minor) + 2}", wheel, tmp_path / "other")
    merge = (sys.executable, ROOT / "scripts/merge_wheels.py", tmp_path / "merged")
    merged = Path(run(*merge, other, wheel, cwd=tmp_path).strip())
    python = environment(tmp_path / "env", *dependencies())
    install(merged, python)
    script = f"""
import contextpool, torch
from importlib.metadata import requires
assert torch.allclose({POOL}, torch.full((1, 9, 2), 3.0))
maps = open('/proc/self/maps').read()
assert "/contextpool/torch-{major}.{minor}/lib/libcontextpool_ops.so" in maps
assert "/contextpool/lib/libcontextpool_ops.so" not in maps
print(*requires("contextpool"))
"""
    expected = f"torch<{major}.{int(minor) + 3},!={major}.{int(minor) + 1}.*,>={major}.{minor}"
    needs = run(python, "-c", script, cwd=tmp_path).split()[0]
    assert sorted(needs.removeprefix("torch").split(",")) == sorted(expected.removeprefix("torch").split(","))
    assert "cp-transformer-12" in run(python.parent / "contextpool", "models", cwd=tmp_path)
    listed = run(sys.executable, "-m", "pip", "--python", python, "check", cwd=tmp_path)
    assert "No broken requirements found" in listed
    assert "two wheels are for the same torch" in run(*merge, wheel, wheel, cwd=tmp_path, ok=False)
