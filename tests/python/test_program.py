"""The program: its configs and presets, what it prints, and how it answers bad input."""

import json
import math
import os
import re
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from safetensors.torch import load_file, save_file

from program import PROGRAM, ROOT, SHORT, SMALL, call, contextpool_says, log, on_terminal

PRESETS = sorted(p.stem for p in (ROOT / "configs").glob("*.toml"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A short run with everything in it."""
    run = tmp_path_factory.mktemp("run") / "run"
    flags = ["--model", "cp-tiny", "--steps", 6, "--checkpoint-every", 3, *SMALL, *SHORT]
    contextpool_says("train", "--run", run, "--data", text, *flags)
    return run


def flat(toml: str) -> dict[str, Any]:
    """The keys of all sections of a config."""
    keys: dict[str, Any] = {}
    for name, value in tomllib.loads(toml).items():
        keys.update(value if isinstance(value, dict) else {name: value})
    return keys


def model_file(run: Path) -> Path:
    return run / "checkpoints/step-6/model.safetensors"


def test_a_run_folder_holds_what_is_promised(run: Path) -> None:
    assert {p.name for p in run.iterdir()} >= {"config.toml", "log.jsonl", "checkpoints"}
    assert list(run.glob("events.*"))
    lines = log(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        assert line["bpc"] == pytest.approx(line["loss"] / math.log(2))
        assert line["tokens"] == 64 * line["step"]
        assert ("dev_loss" in line) == ("windows" in line) == (line["step"] in (3, 6))
    (layer,) = lines[-1]["windows"]
    assert layer["sigma"] == pytest.approx(4, abs=0.5) and 1 < layer["tokens"] < 64
    config = flat((run / "config.toml").read_text())
    assert config["model"] == "cp-tiny" and config["layers"] == 1 and config["steps"] == 6


def test_events_are_read_by_tensorboard(run: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="this Python has no tensorboard"
    )
    events = accumulators.EventAccumulator(str(run))
    events.Reload()
    for tag, key in (("train/loss", "loss"), ("train/lr", "lr"), ("train/gradient_norm", "gradient_norm")):
        assert [e.step for e in events.Scalars(tag)] == [1, 2, 3, 4, 5, 6]
        assert [e.value for e in events.Scalars(tag)] == pytest.approx([line[key] for line in log(run)], rel=1e-6)
    assert [e.step for e in events.Scalars("dev/bpc")] == [3, 6]
    assert [e.step for e in events.Scalars("windows/layer0/sigma")] == [3, 6]


def test_the_same_command_gives_the_same_bits(run: Path, tmp_path: Path) -> None:
    contextpool_says("train", "--run", tmp_path / "again", "--config", run / "config.toml")
    assert model_file(tmp_path / "again").read_bytes() == model_file(run).read_bytes()
    assert log(tmp_path / "again") == log(run)
    assert (tmp_path / "again/config.toml").read_text() == (run / "config.toml").read_text()


def test_flags_win_over_the_config_file_and_that_over_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("# mine\nbatch = 5\nlr = [1e-3, 2e-3]\nbfloat16 = true\nheads = 4\n")
    said = contextpool_says("train", "--preset", "tiny", "--config", file, "--lr", "5e-3", "--print-config")
    config = flat(said)
    assert (config["lr"], config["batch"], config["length"]) == (5e-3, 5, 64)
    assert config["bfloat16"] is True and config["heads"] == 4 and "layers" not in config
    file.write_text(said)
    assert contextpool_says("train", "--config", file, "--print-config") == said


def test_every_config_file_is_a_preset() -> None:
    said = " ".join(contextpool_says("train", "--help").split())
    (listed,) = re.findall(r"a recipe of configs/: ([a-z0-9, -]+?) --", said)
    assert sorted(listed.split(", ")) == PRESETS


def pictures_scaled_down(preset: dict, folder: Path) -> list[object]:
    """Flags for a small model of the preset's kind, and for one step of it on pictures of the preset's kind."""
    small = {"vit": ["--layers", 1], "dei": ["--layers", 1], "swi": ["--features", 8, "--head-features", 4],
             "res": ["--features", 8]}[preset["model"].removeprefix("cp-")[:3]]  # fmt: skip
    stages = 4 if "swin" in preset["model"] or preset["format"] == "folder" else 3
    small += ["--depths", ",".join("1" * stages)] if "--layers" not in small else []
    data = ["--data", "shapes", "--format", "shapes", "--dev-images", 40]
    if preset["format"] == "folder":
        small += ["--image-size", 32, "--pool-hidden", 4]
        small += ["--features", 24, "--heads", 3, "--feedforward", 32] if "--layers" in small else []
        for place in ("train/a", "train/b", "val/a", "val/b"):
            (folder / "pictures" / place).mkdir(parents=True)
            for i in range(2):
                write_picture(folder / "pictures" / place / f"{i}.png", 40 + i)
        data = ["--data", folder / "pictures", "--loaders", 1]
    counted = ["--batch", 4, "--epochs", 0, "--warmup-epochs", 0, "--steps", 1, "--warmup", 1]
    return [*small, *data, *counted, "--device", "cpu", "--threads", 1]


def write_picture(path: Path, side: int) -> None:
    """A PNG, without a package for it."""
    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(3 * side)) for y in range(side))
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_takes_a_step_scaled_down(name: str, tmp_path: Path, text: Path) -> None:
    preset = flat(contextpool_says("train", "--preset", name, "--print-config"))
    data = text
    if preset.get("layout") == "text8":
        data = tmp_path / "letters"
        data.write_bytes(bytes(b if chr(b) in "abcdefghijklmnopqrstuvwxyz" else 32 for b in text.read_bytes().lower()))
    layout = {"enwik8": "bytes", "text8": "letters"}.get(preset.get("layout"), "bytes")
    flags = [*SMALL, *SHORT, "--steps", 1, "--warmup", 1, "--layout", layout, "--data", data]
    if "nmt" in preset["model"]:
        small = ["--layers", 1, "--features", 16, "--heads", 2, "--feedforward", 32, "--vocabulary-size", 90]
        numbers = ["--data", "numbers-de", "--numbers", 500, "--eval-sentences", 4]
        flags = [*small, *numbers, "--steps", 1, "--device", "cpu"]
    if preset.get("format") in ("cifar10", "folder", "shapes"):
        flags = pictures_scaled_down(preset, tmp_path)
    contextpool_says("train", "--preset", name, "--run", tmp_path / "run", *flags)
    stages = len(preset["lr"]) if isinstance(preset["lr"], list) else 1
    losses = [line["loss"] for line in log(tmp_path / "run")]
    assert len(losses) == stages and all(math.isfinite(loss) for loss in losses)


@pytest.fixture(scope="module")
def table() -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in contextpool_says("models", "--length", 1024).splitlines()[1:]}


@pytest.mark.parametrize("text_name", ["enwik8", "text8"])
@pytest.mark.parametrize(
    "preset, model, parameters",
    [
        ("cp-transformer-11", "cp-transformer-11", 36.0e6),
        ("cp-transformer-12", "cp-transformer-12", 39.3e6),
        ("cp-transformer-14", "cp-transformer-14", 45.8e6),
        ("cp-longformer", "cp-longformer-12", 39.3e6),
        ("cp-adaptive-span", "cp-adaptive-span-12", 39.3e6),
    ],
)
def test_the_papers_recipes(text_name: str, preset: str, model: str, parameters: float, table: dict) -> None:
    config = flat(contextpool_says("train", "--preset", f"{text_name}-{preset}", "--print-config"))
    assert config["model"] == model and config["layout"] == text_name
    assert config["length"] == [2048, 4096, 8192] and config["batch"] == [32, 32, 16]
    assert sum(config["steps"]) == 530_000 and config["lr"] == [2.5e-4, 1.25e-4, 6.25e-5]
    assert config["warmup"] == [min(n // 10, 10_000) for n in config["steps"]] and config["schedule"] == "staged"
    assert (config["dropout"], config["weight-decay"], config["clip"]) == (0.2, 0.01, 0.25)
    assert float(table[config["model"]][1]) == pytest.approx(parameters, rel=0.005)


def test_models_lists_the_registry_with_its_costs(table: dict[str, list[str]]) -> None:
    assert {"transformer-6", "cp-transformer-14", "dw-transformer-6", "cp-tiny"} <= table.keys()
    macs, with_pooling = (float(table["cp-transformer-6"][k].removesuffix("M")) for k in (2, 3))
    assert with_pooling - macs == pytest.approx(512 * 1025 / 2 * 6 / 1e6, abs=0.02)
    assert table["transformer-6"][2] == table["transformer-6"][3]
    # In rows of 1024 tokens Longformer's lower layers see less; an adaptive span at its limit sees all.
    longformer, span, full = (
        float(table[f"{name}-12"][2].removesuffix("M")) for name in ("longformer", "adaptive-span", "transformer")
    )
    assert longformer < span == full


def test_eval_by_run_and_by_file_agree_and_follow_the_protocol(run: Path, text: Path) -> None:
    windows = ["--window", 64, "--step", 16, "--tokens", 500, "--json"]
    by_run = json.loads(contextpool_says("eval", "--run", run, *windows))
    by_file = json.loads(
        contextpool_says("eval", "--checkpoint", model_file(run), "--data", text, *windows, "--batch", 7)
    )
    assert by_run["tokens"] == by_file["tokens"] == 499
    assert by_run["bpc"] == pytest.approx(by_file["bpc"], abs=1e-5)
    other = json.loads(contextpool_says("eval", "--run", run, *windows, "--split", "dev"))
    assert other["bpc"] != by_run["bpc"]
    assert "bpc" in contextpool_says("eval", "--run", run, "--which", "best", "--tokens", 300)


def test_eval_scores_windows_of_the_trained_length_by_default(run: Path, text: Path, tmp_path: Path) -> None:
    by_run = json.loads(contextpool_says("eval", "--run", run, "--json"))
    assert (by_run["window"], by_run["step"], by_run["tokens"]) == (32, 16, len(text.read_bytes()) // 20 - 1)
    by_file = call("eval", "--checkpoint", model_file(run), "--data", text, "--split", "test", "--json")
    assert json.loads(by_file.stdout)["bpc"] == pytest.approx(by_run["bpc"], abs=1e-5)
    assert by_file.stderr == ""
    other = json.loads(contextpool_says("eval", "--run", run, "--window", 20, "--tokens", 300, "--json"))
    assert (other["window"], other["step"]) == (20, 10)
    bare = tmp_path / "bare.safetensors"
    options = [line for line in contextpool_says("inspect-checkpoint", model_file(run)).splitlines() if ".model" in line]
    save_file(load_file(model_file(run)), bare, {"contextpool.model": json.loads(options[0].split(": ", 1)[1])})
    done = call("eval", "--checkpoint", bare, "--data", text, "--tokens", 600, "--json")
    assert json.loads(done.stdout)["window"] == 256 and "does not say how long its training rows were" in done.stderr


def test_eval_by_the_papers_protocol_and_its_hint(run: Path) -> None:
    done = call("eval", "--run", run, "--protocol", "paper", "--tokens", 700, "--json")
    assert (json.loads(done.stdout)["window"], json.loads(done.stdout)["step"]) == (32768, 512)
    (hint,) = re.findall(r"use (--window \d+)", done.stderr)
    followed = call("eval", "--run", run, "--tokens", 700, *hint.split())
    assert followed.returncode == 0 and "use --window" not in followed.stderr


def test_eval_scores_a_separate_file_whole(run: Path, tmp_path: Path) -> None:
    separate = tmp_path / "separate"
    separate.write_bytes(b"import sys\n" * 10)
    assert json.loads(contextpool_says("eval", "--run", run, "--data", separate, "--split", "all", "--json"))["tokens"] == 109
    done = call("eval", "--run", run, "--data", separate)
    assert "scoring the test split" in done.stderr and "--split all" in done.stderr


def test_work_shows_its_progress_on_a_terminal(run: Path, text: Path) -> None:
    status, said = on_terminal("eval", "--run", run, "--batch", 1, "--step", 1, "--tokens", 5000)
    assert status == 0 and re.search(r"scored 0/\d+ tokens", said) and re.search(r"scored \d+/\d+ tokens  ETA \d", said)
    prompt = text.read_text()[:20_000]
    status, said = on_terminal("generate", "--run", run, "--prompt", prompt, "--tokens", 1, "--device", "cpu")
    assert status == 0 and "read 0/20000 tokens of the prompt" in said


def test_the_progress_line_fits_into_the_terminal(tmp_path: Path, text: Path) -> None:
    flags = ["--model", "cp-tiny", "--steps", 40, *SMALL, *SHORT, "--eval-tokens", 0]
    status, said = on_terminal("train", "--run", tmp_path / "run", "--data", text, *flags, columns=30)
    assert status == 0
    lines = [line for line in said.split("\r\x1b[K")[1:] if "\n" not in line]
    assert lines and all(len(line) < 30 for line in lines), lines


def test_generate_repeats_by_seed(run: Path) -> None:
    flags = ["generate", "--run", run, "--prompt", "import ", "--tokens", 30, "--device", "cpu"]
    first = contextpool_says(*flags, "--seed", 1)
    assert first.startswith("import ")
    assert contextpool_says(*flags, "--seed", 1) == first != contextpool_says(*flags, "--seed", 2)
    likeliest = contextpool_says(*flags, "--temperature", 0, "--seed", 1)
    assert likeliest == contextpool_says(*flags, "--top-k", 1, "--seed", 2)


def test_inspect_checkpoint_lists_what_safetensors_reads(run: Path) -> None:
    tensors = load_file(model_file(run))
    lines = contextpool_says("inspect-checkpoint", model_file(run)).splitlines()
    for name, tensor in tensors.items():
        (line,) = [x for x in lines if x.endswith(json.dumps(name))]
        assert line.startswith("F32") and str(list(tensor.shape)) in line
    assert lines[-1].startswith(f"{len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} elements")


def bad_inputs() -> list:
    train = ["train", "--data", "TEXT", "--run", "NEW", *SMALL, *SHORT]
    return [
        ([], 2, ""),
        (["trian"], 2, 'did you mean "train"'),
        (["zebra"], 2, 'unknown subcommand "zebra" (--help lists them)\n'),
        (["train", "--xyzzy"], 2, "unknown option --xyzzy (--help lists them)\n"),
        (["train", "--check"], 2, "did you mean --checkpoint-every"),
        (["train", "--run", "NEW"], 2, "--data FILE is needed"),
        (["train", "--data", "TEXT"], 2, "--run DIR is needed"),
        ([*train, "--modle", "tiny"], 2, "did you mean --model"),
        ([*train, "--model", "cp-transfomer-12"], 2, 'did you mean "cp-transformer-12"'),
        ([*train, "--preset", "spec-ml"], 2, 'did you mean "spec-lm"'),
        ([*train, "--layout", "enwik9"], 2, 'did you mean "enwik8"'),
        ([*train, "--layout", "enwik8"], 1, "TEXT"),
        ([*train, "--schedule", "cosin"], 2, 'did you mean "cosine"'),
        ([*train, "--placement", "after_atention"], 2, 'did you mean "after_attention"'),
        ([*train, "--attention", "windw"], 2, 'did you mean "window"'),
        ([*train, "--attention", "window", "--dilated-heads", "3"], 2, "dilated_heads must be from 0"),
        ([*train, "--window-first", "64", "--window-last", "32"], 2, "window_first must be at most window_last, 32"),
        ([*train, "--span-loss", "-1"], 2, "span_loss must not be negative"),
        ([*train, "--lr", "fast"], 2, "--lr"),
        ([*train, "--lr", "1e-3,1e-4", "--steps", "1,2,3"], 2, "--lr has 2 values for 3 stages"),
        ([*train, "--length", "1000000"], 1, "TEXT: the split"),
        ([*train, "--device", "cuda:99"], 2, "cuda:99"),
        ([*train, "--config", "TYPO"], 2, "TYPO: unknown key lenght; did you mean length"),
        ([*train, "--config", "MISSING"], 2, "MISSING"),
        ([*train, "--config", "SECTION"], 2, "SECTION: [optimizer] has length, which belongs in [train]"),
        ([*train, "--config", "ONCE"], 2, "ONCE: run is for the command line, not for a config file"),
        ([*train, "--config", "LIST"], 2, "LIST: lr: an empty list"),
        ([*train, "--config", "INFINITE"], 2, "lr inf"),
        ([*train, "--data", "LATIN"], 2, "the name is not UTF-8"),
        ([*train, "--pool-initial-sigma", "inf"], 2, "initial_sigma must be finite, but is inf"),
        ([*train, "--data", "MISSING"], 1, "MISSING: "),
        ([*train, "--data", "EMPTY"], 1, "EMPTY: is empty"),
        ([*train, "--data", "FOLDER"], 1, "FOLDER: "),
        ([*train, "--run", "FOLDER"], 1, "FOLDER: exists already; not a run: choose another name"),
        ([*train, "--run", "MISSING", "--resume"], 2, "MISSING: there is no such run to resume; without --resume"),
        ([*train, "--run", "FOLDER", "--resume"], 2, "FOLDER: there is no run in it to resume (it has no config.toml)"),
        ([*train, "--unverified"], 2, "--unverified is for --resume"),
        ([*train, "--batch", "0"], 2, "batch 0"),
        ([*train, "--lr", "nan"], 2, "lr nan"),
        ([*train, "--dropout", "1"], 2, "dropout must be in [0, 1)"),
        ([*train, "--heads", "3"], 2, "heads"),
        ([*train, "--model", "nope"], 2, 'unknown model "nope" (`contextpool models` lists them)'),
        ([*train, "--device", "tpu"], 2, 'device is "tpu", expected auto, cpu'),
        ([*train, "--layout", "xml"], 2, 'layout is "xml", expected one of bytes, letters, enwik8, text8\n'),
        ([*train, "--threads", "-1"], 2, "threads is -1"),
        ([*train, "--threads", "2000"], 2, "threads is 2000"),
        ([*train, "--steps", "99999999999999999999"], 2, "--steps is 99999999999999999999, expected a whole number"),
        ([*train, "--steps", "010"], 2, "--steps is 010"),
        ([*train, "--steps", "many"], 2, "--steps is many, expected a whole number"),
        ([*train, "--seed", "-1"], 2, "seed is -1"),
        ([*train, "--length", "9223372036854775807"], 2, "rows of 9223372036854775807 tokens has more than 1e+17"),
        ([*train, "--checkpoint-minutes", "-1"], 2, "checkpoint-minutes is -1"),
        ([*train, "--layers", "16000000"], 2, "choose a smaller model"),
        ([*train, "--features", "16000000"], 2, "choose a smaller model"),
        ([*train, "--batch", "1000000000"], 2, "choose a smaller --batch or --length"),
        ([*train, "--data", "EMPTY", "--heads", "3"], 2, "heads"),
        (["eval", "--run", "MISSING"], 2, "MISSING"),
        (["eval"], 2, "--data"),
        (["eval", "--data", "TEXT"], 2, "--checkpoint"),
        (["eval", "--checkpoint", "MISSING", "--data", "TEXT"], 1, "MISSING: "),
        (["eval", "--checkpoint", "EMPTY", "--data", "TEXT"], 1, "EMPTY: "),
        (["eval", "--checkpoint", "TRUNCATED", "--data", "TEXT"], 1, "TRUNCATED: "),
        (["eval", "--checkpoint", "HUGE", "--data", "TEXT"], 1, "HUGE: "),
        (["eval", "--checkpoint", "OTHER", "--data", "TEXT"], 1, "OTHER: "),
        (["eval", "--checkpoint", "LIAR", "--data", "TEXT"], 1, "LIAR: "),
        (["eval", "--checkpoint", "MODEL", "--data", "TEXT", "--split", "tests"], 2, 'did you mean "test"'),
        (["eval", "--checkpoint", "MODEL", "--data", "TEXT", "--window", "4", "--step", "8"], 2, "leave tokens out"),
        (["eval", "--checkpoint", "MODEL", "--data", "TEXT", "--window", "0"], 2, "--window is 0, expected at least 1"),
        (["eval", "--checkpoint", "MODEL", "--data", "TEXT", "--protocol", "papr"], 2, 'did you mean "paper"'),
        (["eval", "--run", "FOLDER", "--data", "TEXT", "--which", "bst"], 2, 'did you mean "best"'),
        (["generate", "--checkpoint", "MODEL", "--top-k", "-3"], 2, "top_k must be 0 (all) or more, but is -3"),
        (["generate", "--checkpoint", "MODEL", "--seed", "-1"], 2, "--seed is -1, expected a whole number"),
        (["generate", "--checkpoint", "MODEL", "--device", "tpu"], 2, 'device is "tpu"'),
        (["generate", "--checkpoint", "MODEL", "--temperature", "-1"], 2, "temperature"),
        (["generate", "--checkpoint", "MODEL", "--prompt", ""], 2, "prompt"),
        (["models", "--length", "0"], 2, "--length"),
        (["inspect-checkpoint"], 2, "FILE"),
        (["inspect-checkpoint", "TRUNCATED"], 1, "TRUNCATED: "),
        (["inspect-checkpoint", "TEXT"], 1, "TEXT: "),
        (["inspect-checkpoint", "MODEL", "MODEL"], 2, "unexpected argument"),
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, text: Path, run: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    good = model_file(run).read_bytes()
    tensors = load_file(model_file(run))
    names = ("NEW", "TYPO", "SECTION", "MISSING", "EMPTY", "FOLDER", "TRUNCATED", "HUGE", "OTHER", "LIAR",
             "ONCE", "LIST", "INFINITE")  # fmt: skip
    paths = {name: folder / name for name in names}
    paths["TYPO"].write_text("batch = 2\nlenght = 64\n")
    paths["SECTION"].write_text("[optimizer]\nlength = 64\n")
    paths["ONCE"].write_text('run = "elsewhere"\n')
    paths["LIST"].write_text("lr = []\n")
    paths["INFINITE"].write_text("lr = inf\n")
    paths["LATIN"] = Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
    paths["LATIN"].write_text("text")
    paths["EMPTY"].write_bytes(b"")
    paths["FOLDER"].mkdir()
    paths["TRUNCATED"].write_bytes(good[:-1])
    paths["HUGE"].write_bytes(struct.pack("<Q", 2**63) + good[8:])
    save_file({"weight": torch.zeros(3)}, paths["OTHER"])
    options = {"layers": 2**20, "features": 2**20}
    save_file(tensors, paths["LIAR"], {"contextpool.model": json.dumps(options)})
    return {**paths, "TEXT": text, "MODEL": model_file(run)}


@pytest.mark.parametrize(
    "arguments, status, words", bad_inputs(), ids=lambda x: " ".join(x[-4:]) if isinstance(x, list) else ""
)
def test_bad_input_is_one_line_and_changes_nothing(
    arguments: list[str], status: int, words: str, files: dict[str, Path]
) -> None:
    before = {p: p.stat().st_mtime_ns for p in files["TYPO"].parent.rglob("*")}
    named = {k: str(p) for k, p in files.items()}
    done = call(*[named.get(a, a) for a in arguments])
    assert done.returncode == status, done.stderr
    for key, path in named.items():
        words = words.replace(key, path)
    assert words in done.stderr
    assert done.stderr.count("\n") == (1 if arguments else 0), done.stderr
    assert {p: p.stat().st_mtime_ns for p in files["TYPO"].parent.rglob("*")} == before


@pytest.mark.parametrize(
    "words", [["models"], ["--version"], ["train", "--help"], ["eval", "--json"], ["inspect-checkpoint"]]
)
def test_what_could_not_be_printed_is_a_failure(words: list[str], run: Path) -> None:
    more = {"eval": ["--run", run], "inspect-checkpoint": [model_file(run)]}.get(words[0], [])
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *words, *more], stdout=full, stderr=subprocess.PIPE, text=True)
    if words[0] == "train":  # whose results are in files
        assert done.returncode == 0
        return
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("contextpool: standard output: cannot write")


def test_an_empty_config_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    empty = contextpool_says("train", "--config", tmp_path / "empty.toml", "--print-config")
    assert empty == contextpool_says("train", "--print-config")


def test_help_and_version_are_there() -> None:
    assert "inspect-checkpoint" in contextpool_says("--help") == contextpool_says("help")
    for name in ("train", "eval", "generate", "models", "inspect", "inspect-checkpoint", "doctor"):
        assert "--help" in contextpool_says(name, "--help") == contextpool_says("help", name)
    assert re.fullmatch(r"contextpool \d+\.\d+\.\d+, torch \d+\.\d+\.\S+\n", contextpool_says("--version"))
    assert "--pool-initial-sigma" in contextpool_says("train", "--help")


def test_doctor_says_what_there_is_and_what_is_wrong() -> None:
    said = contextpool_says("doctor")
    rows = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in said.splitlines()}
    assert rows.keys() >= {"version", "build", "CPU", "kernels", "memory", "threads", "GPU", "check"}
    assert rows["version"] == contextpool_says("--version").strip()
    assert "agrees with its formula" in rows["check"]
    many = call("doctor", OMP_NUM_THREADS="4000", CONTEXTPOOL_CPU="portable")
    assert many.returncode == 0 and "kernels   portable (by CONTEXTPOOL_CPU)" in many.stdout
    assert re.search(r"problem   4000 threads for \S+ cores.*OMP_NUM_THREADS=\d", many.stdout)
