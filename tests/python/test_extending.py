"""A family, a dataset and a task from outside (tests/toy, docs/extending.md): they train, resume, are scored and listed."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from program import ROOT, log

TOY = ROOT / "build/tests/contextpool_toy"
FLAGS = ["--model", "toy-small", "--device", "cpu", "--threads", "1", "--batch", "32", "--lr", "2e-2", "--keep", "100"]


def toy(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TOY), *map(str, words)], capture_output=True, text=True)


def says(*words: object) -> str:
    done = toy(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 epochs of 7 steps: 200 points in batches of 32 that span the ends of epochs."""
    run = tmp_path_factory.mktemp("toy") / "run"
    says("train", "--run", run, "--epochs", 60, "--checkpoint-every", 100, "--accumulate", 2, *FLAGS)
    return run


def test_the_toy_learns_what_a_broken_loop_could_not(whole: Path) -> None:
    lines = log(whole)
    assert len(lines) == 420 and lines[-1]["points"] == 420 * 32
    assert lines[0]["loss"] > 0.5 and lines[-1]["dev_accuracy"] > 0.9
    score = json.loads(says("eval", "--run", whole, "--json"))
    assert score["accuracy"] == lines[-1]["dev_accuracy"]
    best = json.loads((whole / "checkpoints/BEST.json").read_text())
    assert best["value"] == max(line["dev_accuracy"] for line in lines if "dev_accuracy" in line)


@pytest.mark.parametrize("loaders", [1, 2, 3])
def test_a_resumed_epoch_sees_what_an_uninterrupted_one_sees(whole: Path, loaders: int, tmp_path: Path) -> None:
    run, stop = tmp_path / "run", 103 + loaders
    flags = ["--accumulate", 2, "--checkpoint-every", 100, "--loaders", loaders, *FLAGS]
    says("train", "--run", run, "--steps", stop, *flags)
    says("train", "--run", run, "--resume", "--epochs", 60)
    kept = [line for line in log(run) if "dev_accuracy" not in line or line["step"] != stop]
    assert kept == [line for line in log(whole) if line["step"] != stop]
    last = "checkpoints/step-420/model.safetensors"
    assert (run / last).read_bytes() == (whole / last).read_bytes()


def test_the_toy_is_listed_and_has_flags_of_its_own() -> None:
    listed = {line.split()[0] for line in says("models").splitlines()}
    assert {"toy-small", "toy-large", "cp-tiny"} <= listed
    flags = says("train", "--model", "toy-large", "--help")
    assert "--points" in flags and "--hidden" in flags and "--layout" not in flags
    wrong = toy("train", "--model", "toy-small", "--point", 3)
    assert wrong.returncode == 2 and "did you mean --points" in wrong.stderr
    few = toy("train", "--model", "toy-small", "--points", 1, "--print-config")
    assert few.returncode == 2 and "points is 1, expected at least 2" in few.stderr


def test_the_documents_show_what_is_compiled() -> None:
    files = [*sorted((ROOT / "tests/toy").iterdir()), ROOT / "src/nn/mixer.cpp", ROOT / "src/nn/mixers/canon.cpp"]
    sources = " ".join(" ".join(file.read_text().split()) for file in files)
    blocks = re.findall(r"```cpp\n(.*?)```", (ROOT / "docs/extending.md").read_text(), re.S)
    assert len(blocks) >= 8
    for block in blocks:
        assert " ".join(block.split()) in sources, block
