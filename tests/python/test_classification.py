"""Classifiers of pictures through the program: trained on generated shapes and on folders, resumed, scored, used."""

import io
import json
import os
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy
import pytest
import torch

import contextpool
from program import call, contextpool_says, log

image = pytest.importorskip("PIL.Image", reason="this Python has no Pillow")

SMALL = ["--model", "cp-resnet-20", "--features", 4, "--depths", "1,1,1", "--pool-hidden", 4, "--device", "cpu", "--threads", 1]
SGD = ["--optimizer", "sgd", "--lr", 0.1, "--weight-decay", 5e-4, "--schedule", "cosine"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("shapes") / "run"
    model = ["--model", "resnet-20", "--features", 8, "--depths", "1,1,1", "--device", "cpu", "--threads", 1]
    flags = [*SGD, "--data", "shapes", "--batch", 64, "--steps", 200, "--checkpoint-every", 100, "--ema", 0.9, "--pad", 2]
    augmented = ["--mixup", 0.2, "--label-smoothing", 0.1]
    contextpool_says("train", "--run", run, *model, *flags, *augmented, "--dev-images", 500)
    return run


def test_a_small_network_learns_the_shapes(shapes: Path) -> None:
    lines = log(shapes)
    assert lines[-1]["images"] == 200 * 64
    assert lines[-1]["dev_accuracy"] > 0.3, "chance is 0.1"
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_the_score_is_of_the_average_with_its_buffers(shapes: Path, tmp_path: Path) -> None:
    score = json.loads(contextpool_says("eval", "--run", shapes, "--split", "dev", "--json"))
    assert score["images"] == 500 and score["top1"] == log(shapes)[-1]["dev_accuracy"]
    assert score["top5"] >= score["top1"]
    contextpool_says("eval", "--run", shapes, "--per-class", tmp_path / "classes.json")
    classes = json.loads((tmp_path / "classes.json").read_text())
    assert len(classes) == 10 and sum(c["images"] for c in classes) == 2000


def test_python_loads_the_same_classifier(shapes: Path) -> None:
    model = contextpool.models.load(shapes)
    assert isinstance(model, contextpool.models.ResNet) and not model.training
    assert model.options.classes == 10 and model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="not a checkpoint of a language model, but of a resnet"):
        contextpool.models.LanguageModel.load(shapes)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    flags = [*SMALL, *SGD, "--data", "shapes", "--batch", 48, "--checkpoint-every", 100, "--erase", 0.3]
    contextpool_says("train", "--run", tmp_path / "whole", *flags, "--steps", 9, "--dev-images", 100)
    contextpool_says("train", "--run", tmp_path / "parts", *flags, "--steps", 4, "--dev-images", 100, "--schedule", "constant")
    contextpool_says("train", "--run", tmp_path / "one", *flags, "--steps", 9, "--dev-images", 100, "--schedule", "constant")
    contextpool_says("train", "--run", tmp_path / "parts", "--resume", "--steps", 9, "--loaders", 3)
    last = "checkpoints/step-9/model.safetensors"
    assert (tmp_path / "parts" / last).read_bytes() == (tmp_path / "one" / last).read_bytes()
    assert (tmp_path / "parts" / last).read_bytes() != (tmp_path / "whole" / last).read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reddish and bluish pictures of many sizes, one of them broken."""
    folder = tmp_path_factory.mktemp("pictures")
    random = numpy.random.default_rng(0)
    for split, count in (("train", 12), ("val", 6)):
        for name, channel in (("red", 0), ("blue", 2)):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 100, (int(random.integers(20, 90)), int(random.integers(20, 90)), 3))
                pixels[..., channel] += 150
                picture = image.fromarray(pixels.astype("uint8"))
                picture.save(folder / split / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    (folder / "train/red/broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


FOLDER = [*SMALL, "--image-size", 32, "--batch", 8, "--steps", 30, "--lr", 1e-2, "--min-area", 0.5]


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("folder") / "run"
    flags = ["--rand-augment", "rand-m3-mstd0.5-inc1", "--loaders", 2, "--checkpoint-every", 15]
    said = contextpool_says("train", "--run", run, "--data", folder, *FOLDER, *flags)
    assert "broken.jpg" in said
    return run


def test_a_folder_of_pictures_becomes_a_classifier(trained: Path, folder: Path) -> None:
    assert json.loads(contextpool_says("eval", "--run", trained, "--json"))["top1"] > 0.9
    said = contextpool_says("classify", "--run", trained, folder / "val/red/0.jpg", folder / "val/blue/1.png", "--top", 1)
    first, second = said.splitlines()
    assert ":  red " in first and ":  blue " in second


def test_a_broken_picture_does_not_hide_the_others(trained: Path, folder: Path) -> None:
    done = call("classify", "--run", trained, folder / "train/red/broken.jpg", folder / "val/blue/0.jpg")
    assert done.returncode == 1 and "broken.jpg" in done.stderr and "val/blue/0.jpg:  blue" in done.stdout


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that says it is `side` x `side` pixels, all of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * (1 + 3 * side) * 2, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def bad_pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that are no whole pictures, by what the program should say of them."""
    folder = tmp_path_factory.mktemp("bad")
    photo = io.BytesIO()
    image.radial_gradient("L").convert("RGB").save(photo, "jpeg")
    bad = {"bomb.png": bomb(200_000), "text.jpg": b"this is a text\n", "empty.png": b"",
           "cut.jpg": photo.getvalue()[: len(photo.getvalue()) // 2]}  # fmt: skip
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in bad}


def test_a_picture_that_is_none_is_one_line_of_classify(trained: Path, folder: Path, bad_pictures: dict[str, Path]) -> None:
    good = folder / "val/blue/0.jpg"
    done = call("classify", "--run", trained, "--top", 1, *bad_pictures.values(), good)
    assert done.returncode == 1 and done.stdout.startswith(f"{good}:  blue ")
    lines = [line for line in done.stderr.splitlines() if "using" not in line]
    assert len(lines) == len(bad_pictures)
    assert all(str(path) in line for line, path in zip(lines, bad_pictures.values(), strict=True))
    assert "200000" in lines[0]


def with_bad_pictures(source: Path, target: Path, bad_pictures: dict[str, Path], good: int, split: str) -> None:
    for path in [*sorted(source.glob("*.jpg"))[:good], *bad_pictures.values()]:
        target.mkdir(parents=True, exist_ok=True)
        (target / path.name).write_bytes(path.read_bytes())


def test_pictures_that_are_none_are_named_and_left_out(folder: Path, bad_pictures: dict[str, Path], tmp_path: Path) -> None:
    for split, name in (("train", "red"), ("train", "blue"), ("val", "red"), ("val", "blue")):
        bad = bad_pictures if name == "red" else {}
        with_bad_pictures(folder / "val" / name, tmp_path / "data" / split / name, bad, 3, split)
    flags = [*SMALL, "--image-size", 32, "--batch", 4, "--steps", 6, "--checkpoint-every", 6]
    said = contextpool_says("train", "--run", tmp_path / "run", "--data", tmp_path / "data", *flags)
    assert all(f"train/red/{name}" in said for name in bad_pictures)
    done = call("eval", "--run", tmp_path / "run", "--json")
    assert json.loads(done.stdout)["images"] == 6
    assert all(f"val/red/{name}" in done.stderr for name in bad_pictures)


def test_repeated_pictures_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    """Told by those that cannot be read, which are named each time."""
    for i in range(20):
        for name in ("red", "blue"):
            for split in ("train", "val"):
                (tmp_path / "data" / split / name).mkdir(parents=True, exist_ok=True)
                (tmp_path / "data" / split / name / f"{i}.jpg").write_bytes((folder / "val" / name / "0.jpg").read_bytes())
            (tmp_path / "data/train" / name / f"{i}b.jpg").write_bytes(b"no picture")
    flags = [*SMALL, "--image-size", 32, "--batch", 12, "--loaders", 0, "--data", tmp_path / "data"]
    once = contextpool_says("train", "--run", tmp_path / "once", *flags, "--steps", 3)
    thrice = contextpool_says("train", "--run", tmp_path / "thrice", *flags, "--epochs", 1, "--repeats", 3)
    said = [re.findall(r"cannot be read: \S*/(\w+/\w+b\.jpg)", text) for text in (once, thrice)]
    assert len(said[0]) == len(said[1]) == 10
    assert len(set(said[0])) == 10
    assert said[1][:9] == [name for name in said[1][0:9:3] for _ in range(3)]
    assert len(set(said[1][:9])) == 3
    assert log(tmp_path / "thrice")[-1]["images"] == 7 * 12, "an epoch has as many places as there are pictures"


@pytest.mark.parametrize("words", [["--image-size", 48], ["--features", 8], ["--model", "resnet-32"]])
def test_a_run_is_not_resumed_as_another_model(trained: Path, words: list[object]) -> None:
    done = call("train", "--run", trained, "--resume", "--steps", 60, *words)
    assert done.returncode == 2 and "a resumed run keeps it" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_is_not_resumed_on_other_pictures(trained: Path, folder: Path, tmp_path: Path) -> None:
    """Of another number of classes: the checkpoint stays as it is."""
    for split in ("train", "val"):
        for name in ("red", "blue", "green"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "a.jpg").write_bytes((folder / "val/red/0.jpg").read_bytes())
    before = {p.name: p.read_bytes() for p in (trained / "checkpoints").glob("*/*") if p.is_file()}
    done = call("train", "--run", trained, "--resume", "--steps", 60, "--batch", 2, "--data", tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "model.safetensors: a checkpoint of another model" in done.stderr
    assert {p.name: p.read_bytes() for p in (trained / "checkpoints").glob("*/*") if p.is_file()} == before


def test_a_run_goes_on_where_its_pictures_were_moved_to(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "here")
    flags = [*SMALL, "--image-size", 32, "--batch", 8]
    contextpool_says("train", "--run", tmp_path / "run", "--data", tmp_path / "here", *flags, "--steps", 1)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = ["--run", tmp_path / "run", "--resume", "--steps", 2, "--data", tmp_path / "there"]
    (tmp_path / "there/train/red/0.jpg").rename(tmp_path / "0.jpg")
    done = call("train", *moved)
    assert done.returncode == 1 and "not the pictures of this run" in done.stderr
    (tmp_path / "0.jpg").rename(tmp_path / "there/train/red/0.jpg")
    assert "step 2/2" in contextpool_says("train", *moved)


def test_a_score_is_of_pictures_that_can_be_read(trained: Path, folder: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("red", "blue"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            content = (folder / "val" / name / "0.jpg").read_bytes() if split == "train" else b"no picture"
            for i in range(2):
                (tmp_path / "data" / split / name / f"{i}.jpg").write_bytes(content)
    flags = [*SMALL, "--image-size", 32, "--batch", 2, "--steps", 1]
    said = contextpool_says("train", "--run", tmp_path / "run", "--data", tmp_path / "data", *flags)
    assert "accuracy" not in said and "val/red/0.jpg" in said
    for command in (["--run", tmp_path / "run"], ["--run", trained, "--data", tmp_path / "data"]):
        done = call("eval", *command)
        assert done.returncode == 1 and "none of the 4 pictures of test can be read" in done.stderr
        assert done.stdout == ""


def test_eval_says_what_is_wrong_before_it_scores(trained: Path, tmp_path: Path) -> None:
    for words, status, expected in (
        (["--central-ratio", "nan"], 2, "--central-ratio is nan, expected 0.01 to 1"),
        (["--central-ratio", 0], 2, "--central-ratio is 0"),
        (["--format", "jpeg"], 2, 'format is "jpeg"'),
        (["--per-class", tmp_path], 1, "cannot write: Is a directory"),
        (["--per-class", tmp_path / "no/file"], 1, "cannot write: No such file or directory"),
    ):
        done = call("eval", "--run", trained, *words)
        assert done.returncode == status and expected in done.stderr and done.stdout == "", done.stderr


def test_the_score_is_told_where_its_file_cannot_be_written(trained: Path) -> None:
    done = call("eval", "--run", trained, "--per-class", "/dev/full")
    assert done.returncode == 1 and "top-1" in done.stdout
    assert "/dev/full: cannot write: No space left on device" in done.stderr


@pytest.mark.parametrize(
    "words, status, expected",
    [
        (["--data", "EMPTY"], 1, "no pictures found"),
        (["--data", "ONE"], 1, "pictures of one class only"),
        (["--data", "MISSING"], 1, "no pictures found"),
        (["--data", "SHORT"], 1, "data_batch_1.bin"),
        (["--data", "NAMES"], 1, "batches.meta.txt"),
        (["--data", "EMPTY_SPLIT"], 1, "no pictures"),
        (["--data", "shapes", "--repeats", 0], 2, "repeats is 0"),
        (["--data", "shapes", "--normalization", "imagnet"], 2, 'did you mean "imagenet"'),
        (["--data", "shapes", "--image-size", 64], 1, "give it --image-size 32"),
        (["--data", "shapes", "--label-smoothing", 2], 2, "label-smoothing is 2"),
        (["--data", "shapes", "--jitter", "nan"], 2, "jitter is nan, expected 0 to 1"),
        (["--data", "shapes", "--epochs", "1e30"], 2, "a stage of 1e+30 epochs"),
        (["--data", "shapes", "--epochs", "-1"], 2, "a stage of -1 epochs"),
        (["--data", "LATIN"], 1, 'the name of the class "caf\\xe9" is not UTF-8'),
        (["--data", "shapes", "--rand-augment", "random"], 2, "random"),
        (["--data", "shapes", "--accumulate", 99], 2, "accumulate is 99"),
        (["--data", "shapes", "--dev-images", 10_000_000], 1, "expected"),
    ],
)
def test_bad_data_are_one_clear_line(words: list[object], status: int, expected: str, tmp_path: Path) -> None:
    (tmp_path / "EMPTY").mkdir()
    for split in ("train", "val"):
        (tmp_path / "ONE" / split / "cat").mkdir(parents=True)
        image.new("RGB", (40, 40)).save(tmp_path / "ONE" / split / "cat/a.png")
    (tmp_path / "SHORT").mkdir()
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (tmp_path / "SHORT" / name).write_bytes(b"\0" * 1000)
    (tmp_path / "SHORT/batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    (tmp_path / "NAMES").mkdir()
    for path in (tmp_path / "SHORT").iterdir():
        (tmp_path / "NAMES" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "NAMES/batches.meta.txt").write_text("\n".join("abcdefghi") + "\n")
    for split in ("train/cat", "train/dog", "val"):
        (tmp_path / "EMPTY_SPLIT" / split).mkdir(parents=True)
    for split in ("train", "val"):
        for name in (b"caf\xe9", b"tea"):
            os.makedirs(os.fsencode(tmp_path / "LATIN" / split) + b"/" + name)
            image.new("RGB", (40, 40)).save(tmp_path / "LATIN" / split / os.fsdecode(name) / "a.png")
    names = {"EMPTY", "ONE", "MISSING", "SHORT", "NAMES", "EMPTY_SPLIT", "LATIN"}
    flags = [tmp_path / w if w in names else w for w in words]
    done = call("train", "--run", tmp_path / "run", "--model", "resnet-20", "--steps", 1, "--device", "cpu", "--batch", 8, *flags)
    assert done.returncode == status, done.stderr
    assert len(done.stderr.splitlines()) == 1 and expected in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_family_is_refused_by_name(shapes: Path, folder: Path) -> None:
    file = next((shapes / "checkpoints").glob("step-200")) / "model.safetensors"
    done = call("generate", "--checkpoint", file)
    assert done.returncode == 1 and 'family "resnet"; expected a "language_model"' in done.stderr
    done = call("eval", "--checkpoint", file, "--data", folder)
    assert done.returncode == 1 and "are not those of the model" in done.stderr
