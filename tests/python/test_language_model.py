"""The language model in Python and in C++ is one model: weights travel both ways through safetensors and give the same
logits. Its options, its steps, its causality."""

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from contextpool.models import LanguageModel, LanguageModelCache, LanguageModelOptions
from contextpool.models._crc32c import crc32c, crc32c_of_file

pytest.importorskip("safetensors")
from safetensors import safe_open
from safetensors.torch import load_file, save_file

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


def write_manifest(folder: Path) -> None:
    files = {p.name: {"size": p.stat().st_size, "crc32c": f"{slow_crc32c(p.read_bytes()):08x}"}
             for p in sorted(folder.glob("*.safetensors"))}  # fmt: skip
    manifest = {"format": 1, "step": int(folder.name[5:]), "files": files}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest, indent=2) + "\n")


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, by its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_checksums_are_those_of_the_definition(tmp_path: Path) -> None:
    assert crc32c(torch.tensor(list(b"123456789"), dtype=torch.uint8)) == 0xE3069283  # the standard's check value
    for size in (0, 1, 3, 4, 5, 1000, 65_536, 70_001):
        data = torch.randint(0, 256, (size,), dtype=torch.uint8)
        (tmp_path / "file").write_bytes(bytes(data.tolist()))
        assert crc32c_of_file(tmp_path / "file") == slow_crc32c(bytes(data.tolist())), size


def test_checksums_of_several_blocks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.randint(0, 256, (5000,), dtype=torch.uint8)
    whole = crc32c(data)
    monkeypatch.setattr("contextpool.models._crc32c._BLOCK", 1234)
    assert crc32c(data) == whole


def test_load_finds_the_newest_checkpoint_of_a_run(tmp_path: Path) -> None:
    def save(folder: Path, name: str, seed: int) -> LanguageModel:
        torch.manual_seed(seed)
        model = random_model(POOLED)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), folder / name, {"contextpool.model": json.dumps(vars(model.options))})
        write_manifest(folder)
        return model

    tokens = torch.randint(0, 30, (1, 20))
    steps = tmp_path / "run" / "checkpoints"
    save(steps / "step-9", "model.safetensors", 1)
    newest = save(steps / "step-100", "model.safetensors", 2)
    assert torch.equal(LanguageModel.load(tmp_path / "run")(tokens), newest(tokens))
    assert torch.equal(LanguageModel.load(steps / "step-100" / "model.safetensors")(tokens), newest(tokens))
    average = save(steps / "step-100", "ema.safetensors", 3)
    assert torch.equal(LanguageModel.load(tmp_path / "run")(tokens), average(tokens))
    assert not LanguageModel.load(tmp_path / "run").training


def damage_a_byte(folder: Path) -> str:
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return "model.safetensors: damaged, its checksum is"


def shorten(folder: Path) -> str:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    return "MANIFEST.json says"


def change_the_manifest(folder: Path) -> str:
    file = folder / "MANIFEST.json"
    file.write_text(file.read_text().replace('"step"', ' "step"'))
    return "not a manifest of a checkpoint, or a damaged one"


def remove_the_manifest(folder: Path) -> str:
    (folder / "MANIFEST.json").unlink()
    return "MANIFEST.json: missing"


@pytest.mark.parametrize("harm", (damage_a_byte, shorten, change_the_manifest, remove_the_manifest))
def test_load_takes_the_newest_checkpoint_that_passes_verification(tmp_path: Path, harm: Callable[[Path], str]) -> None:
    models = []
    for step in (9, 100):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step}"
        folder.mkdir(parents=True)
        models.append(random_model(SMALL))
        save_file(models[-1].state_dict(), folder / "model.safetensors", {"contextpool.model": json.dumps(SMALL)})
        write_manifest(folder)
    why = harm(folder)
    tokens = torch.randint(0, 30, (1, 20))
    with pytest.warns(UserWarning, match=f"loaded step 9; skipped: .*step-100.*{why}"):
        loaded = LanguageModel.load(tmp_path / "run")
    assert torch.equal(loaded(tokens), models[0](tokens))
    if harm is not remove_the_manifest:  # without one there is nothing to verify by
        for path in (folder, folder / "model.safetensors"):
            with pytest.raises(ValueError, match=why):
                LanguageModel.load(path)
    harm(tmp_path / "run" / "checkpoints" / "step-9")
    with pytest.raises(ValueError, match="no checkpoint passes verification"):
        LanguageModel.load(tmp_path / "run")


def test_tokens_that_are_no_batch_are_refused() -> None:
    model = random_model(SMALL)
    with pytest.raises(ValueError, match=r"language model: tokens must be .* \[7\]; tokens.unsqueeze\(0\)"):
        model(torch.zeros(7, dtype=torch.long))
    for tokens in (torch.zeros(1, 7), torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(ValueError, match="language model: tokens must be"):
            model.step(tokens, LanguageModelCache())


def test_what_is_no_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        LanguageModel.load(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(ValueError, match="text: not a safetensors file"):
        LanguageModel.load(tmp_path / "text")
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
