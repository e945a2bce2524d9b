"""Weights of others through the program: imported as a model of ours, and as the start of a run."""

import json
import re
import shutil
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

import contextpool
from other_models import import_timm
from program import call, contextpool_says
from test_vision_models import expect_close, randomise

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

image = pytest.importorskip("PIL.Image", reason="this Python has no Pillow")
timm = import_timm()

VIT = ["--image-size", 32, "--patch", 8, "--layers", 2, "--features", 24, "--heads", 3, "--feedforward", 48]
RESNET = ["--image-size", 32, "--depths", "1,1,1,1"]
STEP = ["--data", "shapes", "--format", "shapes", "--dev-images", 20, "--batch", 4, "--steps", 1, "--device", "cpu",
        "--threads", 1, "--pool-hidden", 4, "--lr", 1e-12, "--weight-decay", 0]  # fmt: skip


def timm_vit(classes: int = 7, image_size: int = 32) -> nn.Module:
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=image_size, patch_size=8, num_classes=classes, embed_dim=24, depth=2, num_heads=3, mlp_ratio=2
    )
    randomise(model)
    return model.eval()


def saved(model: nn.Module, path: Path) -> Path:
    save_file({n: t.contiguous() for n, t in model.state_dict().items()}, path)
    return path


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = timm_vit()
    return model, saved(model, tmp_path_factory.mktemp("timm") / "vit.safetensors")


def weights_of(run: Path) -> dict[str, Tensor]:
    return load_file(run / "checkpoints/step-1/model.safetensors")


@torch.no_grad()
def test_an_imported_model_gives_its_logits_and_classifies_pictures(vit: tuple, tmp_path: Path) -> None:
    theirs, file = vit
    (tmp_path / "names").write_text("".join(f"kind {i}\n" for i in range(7)))
    flags = ["--model", "vit-tiny-patch16", *VIT, "--classes", tmp_path / "names", "--normalization", "half"]
    said = contextpool_says("import", file, *flags, "--central-ratio", 1, "--out", tmp_path / "ours.safetensors")
    assert "7 classes" in said and "(names of timm)" in said and "new" not in said
    images = torch.randn(2, 3, 32, 32)
    expect_close(contextpool.models.load(tmp_path / "ours.safetensors")(images), theirs(images))

    pixels = numpy.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype("uint8")
    image.fromarray(pixels).save(tmp_path / "a.png")
    said = contextpool_says("classify", "--checkpoint", tmp_path / "ours.safetensors", tmp_path / "a.png", "--top", 7)
    x = (torch.tensor(pixels).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    expected = theirs(x).softmax(1)[0]
    found = {int(i): float(p) / 100 for i, p in re.findall(r"kind (\d) ([0-9.]+) %", said)}
    assert len(found) == 7
    assert all(abs(found[i] - expected[i].item()) < 1e-3 for i in range(7))


@torch.no_grad()
def test_an_imported_model_is_scored_as_it_was_normalized(vit: tuple, tmp_path: Path) -> None:
    """Its classes have no names: those of the pictures are taken, if they are as many."""
    theirs, file = vit
    random = numpy.random.default_rng(2)
    right = 0
    for label in range(7):
        for split in ("train", "val"):
            (tmp_path / "pictures" / split / f"c{label}").mkdir(parents=True)
            pixels = random.integers(0, 256, (32, 32, 3)).astype("uint8")
            image.fromarray(pixels).save(tmp_path / "pictures" / split / f"c{label}/a.png")
        x = (torch.tensor(pixels).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
        right += int(theirs(x).argmax().item() == label)
    flags = ["--model", "vit-tiny-patch16", *VIT, "--normalization", "half", "--central-ratio", 1]
    contextpool_says("import", file, *flags, "--out", tmp_path / "ours.safetensors")
    ours = ["--checkpoint", tmp_path / "ours.safetensors", "--data", tmp_path / "pictures"]
    score = json.loads(contextpool_says("eval", *ours, "--json"))
    assert score["images"] == 7 and round(7 * score["top1"]) == right
    shutil.rmtree(tmp_path / "pictures/train/c6")
    shutil.rmtree(tmp_path / "pictures/val/c6")
    done = call("eval", *ours)
    assert done.returncode == 1 and "its 6 classes are not those of the model, which has 7" in done.stderr


@torch.no_grad()
def test_an_imported_model_at_another_size_has_positions_as_timm_resizes_them(vit: tuple, tmp_path: Path) -> None:
    theirs, file = vit
    large = timm_vit(image_size=48)
    large.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(theirs.state_dict(), large))
    flags = ["--model", "vit-tiny-patch16", *VIT, "--image-size", 48, "--out", tmp_path / "ours.safetensors"]
    assert "resized 1 table" in contextpool_says("import", file, *flags)
    images = torch.randn(2, 3, 48, 48)
    expect_close(contextpool.models.load(tmp_path / "ours.safetensors")(images), large(images))


@torch.no_grad()
def test_training_starts_from_weights_with_a_new_head(vit: tuple, tmp_path: Path) -> None:
    theirs, file = vit
    model = ["--model", "cp-vit-tiny-patch16", *VIT]
    said = call("train", "--run", tmp_path / "run", *model, *STEP, "--weights", file)
    assert said.returncode == 0, said.stderr
    (line,) = [line for line in (said.stdout + said.stderr).splitlines() if "started from" in line]
    assert "(names of timm); the head is new: 10 classes here, 7 in the file" in line
    assert re.search(r"; \d+ tensors of mixers are new$", line)
    ours = weights_of(tmp_path / "run")
    for name, tensor in theirs.state_dict().items():
        if name.startswith("head"):
            assert ours[name].shape[0] == 10
        else:
            torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6)
    assert any(".context_pool." in name for name in ours)


@torch.no_grad()
def test_training_starts_from_a_resnet_and_from_a_run(tmp_path: Path) -> None:
    from timm.models.resnet import BasicBlock
    from timm.models.resnet import ResNet as TimmResNet

    torch.manual_seed(1)
    theirs = TimmResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    file = saved(theirs, tmp_path / "resnet.safetensors")
    model = ["--model", "cp-resnet-18", *RESNET, *STEP]
    contextpool_says("train", "--run", tmp_path / "a", *model, "--weights", file)
    first = weights_of(tmp_path / "a")
    torch.testing.assert_close(first["layer2.0.conv1.weight"], theirs.state_dict()["layer2.0.conv1.weight"])
    torch.testing.assert_close(first["fc.weight"], theirs.state_dict()["fc.weight"])  # as many classes

    contextpool_says("train", "--run", tmp_path / "b", *model, "--weights", tmp_path / "a", "--seed", 5)
    second = weights_of(tmp_path / "b")
    weights = [n for n in first if first[n].is_floating_point() and "running" not in n]
    assert all(torch.allclose(first[n], second[n], rtol=0, atol=1e-6) for n in weights)


def test_a_resumed_run_needs_its_weights_no_more(vit: tuple, tmp_path: Path) -> None:
    file = tmp_path / "start.safetensors"
    shutil.copy(vit[1], file)
    flags = ["--model", "vit-tiny-patch16", *VIT, *STEP[:-4], "--weights", file, "--checkpoint-every", 1]
    contextpool_says("train", "--run", tmp_path / "whole", *flags, "--steps", 2)
    contextpool_says("train", "--run", tmp_path / "parts", *flags)
    file.unlink()
    contextpool_says("train", "--run", tmp_path / "parts", "--resume", "--steps", 2)
    last = "checkpoints/step-2/model.safetensors"
    assert (tmp_path / "parts" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()
    done = call("train", "--run", tmp_path / "parts", "--resume", "--steps", 3, "--weights", vit[1])
    assert done.returncode == 2 and "a resumed run keeps it" in done.stderr


def test_weights_that_do_not_fit_are_one_clear_line(vit: tuple, tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("no weights")
    language = tmp_path / "language"
    (tmp_path / "text").write_text("a line of text\n" * 50)
    small = ["--layers", 1, "--features", 16, "--heads", 2, "--feedforward", 32, "--pool-hidden", 4, "--length", 32]
    contextpool_says("train", "--model", "cp-tiny", "--data", tmp_path / "text", "--run", language, *small,
                     "--steps", 1, "--batch", 2, "--eval-tokens", 50)  # fmt: skip
    vit_model, resnet_model = ["--model", "vit-tiny-patch16", *VIT], ["--model", "resnet-18", *RESNET]
    for model, weights, expected in (
        (vit_model, tmp_path / "nowhere", "there is no such run or file"),
        (vit_model, tmp_path / "text.safetensors", "text.safetensors"),
        (vit_model, tmp_path, "has no whole checkpoint"),
        (vit_model, language, 'a model of the family "language_model"; expected a "vision_transformer"'),
        (resnet_model, vit[1], "not the weights of this ResNet"),
        ([*vit_model, "--layers", 3], vit[1], "missing blocks.2."),
    ):
        done = call("train", "--run", tmp_path / "run", *model, *STEP, "--weights", weights)
        assert done.returncode in (1, 2), done.stdout
        assert len(done.stderr.splitlines()) == 1 and expected in done.stderr
        assert not (tmp_path / "run").exists()


def test_an_import_that_cannot_be_is_one_clear_line(vit: tuple, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("one\ntwo\n")
    good = [vit[1], "--model", "vit-tiny-patch16", *VIT, "--out", tmp_path / "ours"]
    headless = {n: t for n, t in load_file(vit[1]).items() if not n.startswith("head")}
    save_file(headless, tmp_path / "headless.safetensors")
    for words, status, expected in (
        ([], 2, "FILE is needed"),
        ([vit[1], "--out", tmp_path / "ours"], 2, "--model NAME is needed"),
        ([*good, "--model", "vit-tiny"], 2, "did you mean"),
        ([*good, "--model", "cp-tiny"], 2, "no classifier of pictures"),
        ([*good, "--classes", tmp_path / "names"], 1, "has 2 names for the 7 classes"),
        ([*good, "--normalization", "cifra"], 2, "did you mean"),
        ([*good, "--patch", 5], 2, "multiple of the patch"),
        ([tmp_path / "headless.safetensors", *good[1:]], 1, "has no head"),
        ([*good, "--out", vit[1]], 2, "exists"),
    ):
        done = call("import", *words)
        assert done.returncode == status, done.stderr
        assert len(done.stderr.splitlines()) == 1 and expected in done.stderr
        assert not (tmp_path / "ours").exists()
