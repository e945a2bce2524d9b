"""The examples of README.md, run exactly as they are printed there."""

import re
import sys
from pathlib import Path

import pytest

from examples import ROOT, block, promised, run

README = (ROOT / "README.md").read_text()


def test_python_example_prints_what_it_says(tmp_path: Path) -> None:
    code = block(README, "python")
    (tmp_path / "example.py").write_text(code)
    assert run([sys.executable, "example.py"], tmp_path) == promised(code, "#")


def test_cpp_example_prints_what_it_says(tmp_path: Path) -> None:
    code = block(README, "cpp")
    (tmp_path / "main.cpp").write_text(code)
    (tmp_path / "CMakeLists.txt").write_text(block(README, "cmake"))
    commands = block(README, "sh").replace("/path/to/contextpool/build", str(ROOT / "build"))
    assert run(["bash", "-ec", commands], tmp_path)[-2:] == promised(code, "//")


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_picture_is_what_its_script_draws() -> None:
    drawn = run([sys.executable, str(ROOT / "docs/windows.py")], ROOT)
    assert drawn == (ROOT / "docs/windows.svg").read_text().splitlines()
