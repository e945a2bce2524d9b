"""`make demo` on a scale of seconds, and its text."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from contextpool.models import LanguageModel
from contextpool.nn import ContextPool1d
from program import ENVIRONMENT, PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import demo


def demo_text(path: Path, size: int) -> bytes:
    subprocess.run([sys.executable, ROOT / "scripts/demo_text.py", path, str(size)], check=True)
    return path.read_bytes()


def test_the_text_is_the_same_each_time_and_a_few_megabytes(tmp_path: Path) -> None:
    first = demo_text(tmp_path / "a", 3_000_000)
    assert len(first) == 3_000_000
    assert demo_text(tmp_path / "b", 3_000_000) == first
    assert demo_text(tmp_path / "c", 1000) == first[:1000]
    assert b"import" in first and b"\0" not in first


def test_it_trains_scores_and_compares_three_models(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts/demo.py", "--quick", "--program", PROGRAM, "--out", tmp_path]
    for number in ("1", "2"):  # a second run has a folder of its own
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        table = done.stdout.split("tokens/s   memory\n")[1].splitlines()[:3]
        assert [row[:18].strip() for row in table] == ["plain", "canon layers", "gated ContextPool"]
        assert all(1 < float(row[30:].split()[0]) < 9 for row in table), table  # bits per character
        for model in ("tiny", "canon-tiny", "gated-cp-tiny"):
            log = (tmp_path / number / model / "log.jsonl").read_text().splitlines()
            assert json.loads(log[-1])["step"] == 4
        check_windows(tmp_path / number, done.stdout)


def check_windows(out: Path, said: str) -> None:
    """The picture is of held-out text, and its sizes are those that the model has in Python."""
    page = out / "windows.html"
    assert f"open {page} in a browser" in said
    tokens, layers = demo.sizes_by_layer(page)
    line = "".join(tokens)
    text = (out / "text").read_bytes()
    assert line.encode() in text[len(text) * 95 // 100 :] and len(line) >= 40
    assert demo.picture(tokens, layers) in said
    model = LanguageModel.load(out / "gated-cp-tiny")
    sizes = []

    def look(module: ContextPool1d, inputs: tuple) -> None:
        sizes.append(module.forward(inputs[0], return_windows=True)[1].sigma[0].detach())

    for module in model.modules():
        if isinstance(module, ContextPool1d):
            module.register_forward_pre_hook(look)
    with torch.no_grad():
        model(torch.tensor([list(line.encode())]))
    assert len(sizes) == 2 * len(layers) == 4  # after each norm; the page has the first of each block
    for sigma, on_page in zip(sizes[::2], layers):  # 16 groups
        assert sigma.shape == (16, len(line))
        torch.testing.assert_close(torch.tensor(on_page), sigma.mean(0), rtol=1e-3, atol=1e-4)


def test_a_picture_has_a_bar_for_each_token() -> None:
    lines = demo.picture(["a", "b", "c"], [[1.0, 4.0, 2.0], [8.0, 0.0, 4.0]]).splitlines()
    assert lines[0] == " " * 9 + "abc"
    assert lines[1] == "layer 1  \u2581\u2584\u2582" and lines[3] == "layer 2  \u2588 \u2584"
    assert lines[2].strip() == "2.3 tokens on average: 1.0 at 'a' (character 1), 4.0 at 'b' (character 2)"


def test_the_line_is_from_the_end_of_the_text(tmp_path: Path) -> None:
    file = tmp_path / "text"
    late = "    value = compute(something, another, and_a_third)"
    file.write_text("x = call(one, two, three, four, five, six, seven)\n" * 200 + "cut\n" + late + "\n" + "y\n" * 235)
    assert demo.held_out_line(file) == late.strip()
    file.write_text("no code\n" * 50)
    assert demo.held_out_line(file) == "no code"


def test_a_page_without_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html></html>")
    with pytest.raises(AssertionError, match="has no data"):
        demo.sizes_by_layer(tmp_path / "page")
