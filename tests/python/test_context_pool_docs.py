"""The examples of docs/module.md, run exactly as they are printed there."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import contextpool.nn._options as python_options

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/module.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
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
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    commands = block("sh").replace("/path/to/contextpool/build", str(build))
    expected = promised(code, "//")
    assert run(["bash", "-ec", commands], tmp_path)[-len(expected) :] == expected


def test_every_word_of_every_option_is_explained() -> None:
    table = PAGE.split("## Options")[1].split("\n\n**Cost")[0]
    for option, words in python_options.WORDS.items():
        assert f"`{option}`" in table
        for word in words:
            assert f"`{word}`" in table, f"{option} {word}"
