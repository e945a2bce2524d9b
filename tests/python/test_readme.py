"""The examples of README.md, run exactly as they are printed there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return text


def promised(code: str, comment: str) -> list[str]:
    """What the example says it prints, beside each line that prints."""
    lines = [line for line in code.splitlines() if line.lstrip().startswith(("print(", "std::cout"))]
    return [line.split(f" {comment} ", 1)[1].strip() for line in lines]


def run(command: list[str], cwd: Path) -> list[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def test_python_example_prints_what_it_says(tmp_path: Path) -> None:
    code = block("python")
    (tmp_path / "example.py").write_text(code)
    assert run([sys.executable, "example.py"], tmp_path) == promised(code, "#")


def test_cpp_example_prints_what_it_says(tmp_path: Path) -> None:
    code = block("cpp")
    (tmp_path / "main.cpp").write_text(code)
    (tmp_path / "CMakeLists.txt").write_text(block("cmake"))
    commands = block("sh").replace("/path/to/contextpool/build", str(ROOT / "build"))
    assert run(["bash", "-ec", commands], tmp_path)[-2:] == promised(code, "//")


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_picture_is_what_its_script_draws() -> None:
    drawn = run([sys.executable, str(ROOT / "docs/windows.py")], ROOT)
    assert drawn == (ROOT / "docs/windows.svg").read_text().splitlines()
