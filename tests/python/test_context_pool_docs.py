"""The examples of docs/module.md, run exactly as they are printed there."""

import importlib.util
import sys
from pathlib import Path

import contextpool.nn._options as python_options
from examples import ROOT, block, promised, run

PAGE = (ROOT / "docs/module.md").read_text()


def test_python_example_prints_what_it_says(tmp_path: Path) -> None:
    code = block(PAGE, "python")
    (tmp_path / "example.py").write_text(code)
    assert run([sys.executable, "example.py"], tmp_path) == promised(code, "#")


def test_cpp_example_prints_what_it_says(tmp_path: Path) -> None:
    code = block(PAGE, "cpp")
    (tmp_path / "main.cpp").write_text(code)
    (tmp_path / "CMakeLists.txt").write_text(block(PAGE, "cmake"))
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    commands = block(PAGE, "sh").replace("/path/to/contextpool/build", str(build))
    expected = promised(code, "//")
    assert run(["bash", "-ec", commands], tmp_path)[-len(expected) :] == expected


def test_every_word_of_every_option_is_explained() -> None:
    table = PAGE.split("## Options")[1].split("\n\n**Cost")[0]
    for option, words in python_options.WORDS.items():
        assert f"`{option}`" in table
        for word in words:
            assert f"`{word}`" in table, f"{option} {word}"
