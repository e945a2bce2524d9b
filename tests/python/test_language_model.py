"""The language model in Python and in C++ is one model: weights travel both ways through safetensors and give the same
logits. Its options, its steps, its causality."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
import torch
from contextpool.models import LanguageModel, LanguageModelCache, LanguageModelOptions

pytest.importorskip("safetensors")
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

SMALL = {"vocabulary": 30, "layers": 2, "features": 16, "heads": 2, "feedforward": 32, "length": 128}
POOLED = {**SMALL, "mixer": "context_pool", "pool_reference_length": 64, "pool_hidden": 8}


def tool(verb: str, folder: Path) -> None:
    """Runs tests/models/models_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    command = [str(build / "tests" / "contextpool_models_tool"), verb, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def expect_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


def random_model(options: dict) -> LanguageModel:
    model = LanguageModel.from_options(options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3).add_(0 if parameter.dim() > 1 else 0.5)
    return model


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    tool("write", folder)
    return folder


def model_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.safetensors") if "." not in p.stem)


@torch.no_grad()
def test_models_written_by_cpp_say_the_same_here(native: Path) -> None:
    files = model_files(native)
    assert len(files) > 30
    for file in files:
        said = load_file(native / f"{file.stem}.logits.safetensors")
        expect_close(LanguageModel.load(file)(said["tokens"]), said["logits"])


@torch.no_grad()
def test_models_written_here_say_the_same_in_cpp(native: Path, tmp_path: Path) -> None:
    torch.manual_seed(4)
    expected = {}
    for file in model_files(native):
        with safe_open(str(file), "pt") as opened:
            options = json.loads(opened.metadata()["contextpool.model"])
        model, tokens = random_model(options), torch.randint(0, 30, (2, 50))
        save_file(model.state_dict(), tmp_path / file.name, {"contextpool.model": json.dumps(vars(model.options))})
        save_file({"tokens": tokens}, tmp_path / f"{file.stem}.tokens.safetensors")
        expected[file.stem] = model(tokens)
    tool("read", tmp_path)
    for name, logits in expected.items():
        expect_close(load_file(tmp_path / f"{name}.logits.safetensors")["logits"], logits)


def test_options_are_those_of_cpp(native: Path) -> None:
    for file in model_files(native):
        with safe_open(str(file), "pt") as opened:
            options = json.loads(opened.metadata()["contextpool.model"])
        assert set(options) == set(vars(LanguageModelOptions()))
        assert vars(LanguageModelOptions.from_dict(options)) == options


@torch.no_grad()
@pytest.mark.parametrize("extra", ({}, {"mixer": "context_pool"}, {"mixer": "depthwise", "positions": "learned"}))
def test_steps_equal_the_whole_and_leak_nothing(extra: dict) -> None:
    torch.manual_seed(5)
    model = random_model({**POOLED, "mixer": "none", **extra})
    tokens = torch.randint(0, 30, (2, 60))
    whole, cache = model(tokens), LanguageModelCache()
    parts = [model.step(part, cache) for part in tokens.split((1, 8, 1, 40, 10), 1)]
    expect_close(torch.cat(parts, 1), whole)
    tokens[:, 33] = (tokens[:, 33] + 7) % 30
    changed = model(tokens)
    assert torch.equal(changed[:, :33], whole[:, :33])
    assert not torch.equal(changed[:, 33], whole[:, 33])


def test_counts_are_the_published_ones() -> None:
    with torch.device("meta"):
        model = LanguageModel.from_options({"layers": 12, "mixer": "context_pool"})
        plain = LanguageModel.from_options({"layers": 12})
    count = sum(p.numel() for p in model.parameters())
    assert round(sum(p.numel() for p in plain.parameters()) / 1e6, 2) == 38.09
    assert count - sum(p.numel() for p in plain.parameters()) == 12 * 98_754


def test_load_finds_the_newest_checkpoint_of_a_run(tmp_path: Path) -> None:
    def save(folder: Path, name: str, seed: int) -> LanguageModel:
        torch.manual_seed(seed)
        model = random_model(POOLED)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), folder / name, {"contextpool.model": json.dumps(POOLED)})
        (folder / "MANIFEST.json").write_text("{}")
        return model

    tokens = torch.randint(0, 30, (1, 20))
    steps = tmp_path / "run" / "checkpoints"
    save(steps / "step-9", "model.safetensors", 1)
    newest = save(steps / "step-100", "model.safetensors", 2)
    (steps / "step-200").mkdir()  # not finished: it has no manifest
    assert torch.equal(LanguageModel.load(tmp_path / "run")(tokens), newest(tokens))
    assert torch.equal(LanguageModel.load(steps / "step-100" / "model.safetensors")(tokens), newest(tokens))
    average = save(steps / "step-100", "ema.safetensors", 3)
    assert torch.equal(LanguageModel.load(tmp_path / "run")(tokens), average(tokens))
    assert not LanguageModel.load(tmp_path / "run").training


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        LanguageModel.load(tmp_path / "nowhere")
    file = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="other.safetensors: not a checkpoint of a language model"):
        LanguageModel.load(file)
    save_file({"a": torch.zeros(1)}, file, {"contextpool.model": json.dumps(SMALL)})
    with pytest.raises(ValueError, match="other.safetensors: its tensors"):
        LanguageModel.load(file)
    save_file({"a": torch.zeros(1)}, file, {"contextpool.model": json.dumps({**SMALL, "pool_ration": 1})})
    with pytest.raises(ValueError, match='other.safetensors: unknown option "pool_ration"; did you mean "pool_ratio"'):
        LanguageModel.load(file)
    with pytest.raises(ValueError, match="layers must be of type int"):
        LanguageModel.from_options({"layers": "3"})
    with pytest.raises(ValueError, match="layers must be positive"):
        LanguageModel.from_options({"layers": 0})
