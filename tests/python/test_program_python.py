"""A trained run folder opens in Python, with the same logits."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contextpool.models import LanguageModel
from program import PROGRAM, SHORT, contextpool_says

TOOL = PROGRAM.parents[1] / "tests" / "contextpool_models_tool"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """With runs/first, as the documentation has it; the same with an average of the weights; and other attention."""
    folder = tmp_path_factory.mktemp("docs")
    flags = ["--data", text, "--model", "cp-tiny", "--steps", 20, "--lr", "3e-3", *SHORT]
    contextpool_says("train", "--run", folder / "runs/first", *flags)
    contextpool_says("train", "--run", folder / "runs/averaged", "--ema", "0.9", *flags)
    for name in ("cp-longformer-tiny", "cp-adaptive-span-tiny"):
        contextpool_says("train", "--run", folder / "runs" / name, *flags, "--model", name)
    return folder


@pytest.mark.parametrize(
    "name, file",
    [("first", "model"), ("averaged", "ema"), ("cp-longformer-tiny", "model"), ("cp-adaptive-span-tiny", "model")],
)
def test_the_logits_are_those_of_cpp(folder: Path, tmp_path: Path, name: str, file: str) -> None:
    path = folder / "runs" / name / "checkpoints/step-20" / f"{file}.safetensors"
    tokens = torch.randint(256, (3, 50), generator=torch.Generator().manual_seed(1))
    shutil.copy(path, tmp_path / "run.safetensors")
    save_file({"tokens": tokens}, tmp_path / "run.tokens.safetensors")
    subprocess.run([TOOL, "read", tmp_path], check=True)
    expected = load_file(tmp_path / "run.logits.safetensors")["logits"]
    for source in (path, folder / "runs" / name):
        with torch.no_grad():
            logits = LanguageModel.load(source)(tokens)
        assert (logits - expected).abs().max() < 1e-5
    assert expected.std() > 0.1


def test_eval_is_what_python_computes(folder: Path, text: Path) -> None:
    run = folder / "runs/first"
    said = json.loads(contextpool_says("eval", "--run", run, "--window", 64, "--step", 64, "--tokens", 193, "--json"))
    data = text.read_bytes()
    test = torch.tensor(list(data[len(data) - len(data) // 20 :][:193]))
    with torch.no_grad():
        logits = LanguageModel.load(run)(test[:192].view(3, 64))
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), test[1:])
    assert said["tokens"] == 192
    assert said["bpc"] == pytest.approx(nats.item() / math.log(2), abs=1e-4)


def test_names_are_those_of_the_python_model(folder: Path) -> None:
    tensors = load_file(folder / "runs/first/checkpoints/step-20/model.safetensors")
    assert tensors.keys() == LanguageModel.load(folder / "runs/first").state_dict().keys()
