"""Weights of timm's and torchvision's models, built at random, load into ours in both languages and give their logits;
what does not fit is refused by name."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from contextpool.models import ResNet, Swin, VisionTransformer, load_foreign
from other_models import import_timm, import_torchvision
from test_vision_models import FAMILIES, SMALL, expect_close, randomise, tool

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

timm, torchvision = import_timm(), import_torchvision()
ROOT = Path(__file__).resolve().parents[2]

VIT = {"classes": 7, "image_size": 32, "patch": 8, "layers": 2, "features": 24, "heads": 3, "feedforward": 48}
SWIN = {"classes": 7, "image_size": 64, "patch": 2, "window": 4, "depths": "2,2,2,1", "features": 8, "head_features": 4,
        "feedforward_ratio": 2}  # fmt: skip
BASIC = {"classes": 7, "image_size": 40, "kind": "imagenet", "depths": "1,2,1,1", "features": 64}


def timm_vit(distilled: bool = False, image_size: int = 32) -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    kind = VisionTransformerDistilled if distilled else timm.models.vision_transformer.VisionTransformer
    return kind(
        img_size=image_size, patch_size=8, num_classes=7, embed_dim=24, depth=2, num_heads=3, mlp_ratio=2
    )


def timm_swin(window: int = 4) -> nn.Module:
    return timm.models.swin_transformer.SwinTransformer(
        img_size=16 * window, patch_size=2, num_classes=7, embed_dim=8, depths=(2, 2, 2, 1), num_heads=(2, 4, 8, 16),
        window_size=window, mlp_ratio=2.0,
    )  # fmt: skip


def torchvision_vit() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=24, mlp_dim=48, num_classes=7
    )


def torchvision_swin() -> nn.Module:
    return torchvision.models.SwinTransformer(
        patch_size=[2, 2], embed_dim=8, depths=[2, 2, 2, 1], num_heads=[2, 4, 8, 16], window_size=[4, 4], mlp_ratio=2.0,
        num_classes=7,
    )  # fmt: skip


def timm_resnet(bottleneck: bool) -> nn.Module:
    from timm.models.resnet import BasicBlock, Bottleneck
    from timm.models.resnet import ResNet as TimmResNet

    return TimmResNet(Bottleneck if bottleneck else BasicBlock, [1, 2, 1, 1], num_classes=7)


def torchvision_resnet(bottleneck: bool) -> nn.Module:
    from torchvision.models.resnet import BasicBlock, Bottleneck
    from torchvision.models.resnet import ResNet as TorchvisionResNet

    return TorchvisionResNet(Bottleneck if bottleneck else BasicBlock, [1, 2, 1, 1], num_classes=7)


BOTTLENECK = {**BASIC, "block": "bottleneck"}
CASES: dict[str, tuple[str, dict, str, Callable[[], nn.Module]]] = {
    "timm_vit": ("vit", VIT, "timm", timm_vit),
    "timm_deit_distilled": ("vit", {**VIT, "distilled": True}, "timm", lambda: timm_vit(distilled=True)),
    "torchvision_vit": ("vit", VIT, "torchvision", torchvision_vit),
    "timm_swin": ("swin", SWIN, "timm", timm_swin),
    "torchvision_swin": ("swin", SWIN, "torchvision", torchvision_swin),
    "timm_basic": ("resnet", BASIC, "timm or torchvision", lambda: timm_resnet(False)),
    "timm_bottleneck": ("resnet", BOTTLENECK, "timm or torchvision", lambda: timm_resnet(True)),
    "torchvision_basic": ("resnet", BASIC, "timm or torchvision", lambda: torchvision_resnet(False)),
    "torchvision_bottleneck": ("resnet", BOTTLENECK, "timm or torchvision", lambda: torchvision_resnet(True)),
}


@pytest.fixture(scope="module")
def theirs() -> dict[str, tuple[dict[str, Tensor], Tensor, Tensor]]:
    """For each case its weights, images, and what it says of them."""
    torch.manual_seed(6)
    said = {}
    for name, (_, options, _, build) in CASES.items():
        model = build()
        randomise(model)
        images = torch.randn(2, 3, options["image_size"], options["image_size"])
        with torch.no_grad():
            said[name] = (model.state_dict(), images, model(images))
    return said


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_weights_of_others_give_their_logits(theirs: dict, name: str) -> None:
    family, options, source, _ = CASES[name]
    weights, images, logits = theirs[name]
    model = FAMILIES[family].from_options(options).eval()
    report = load_foreign(model, weights)
    assert (report.source, report.resized, report.kept) == (source, [], [])
    expect_close(model(images), logits)


@torch.no_grad()
def test_weights_of_others_give_their_logits_in_cpp(theirs: dict, tmp_path: Path) -> None:
    for name, (family, options, _, _) in CASES.items():
        weights, images, _ = theirs[name]
        metadata = {"family": family, "options": json.dumps(options), "foreign": "yes"}
        save_file({n: t.contiguous().clone() for n, t in weights.items()}, tmp_path / f"{name}.safetensors", metadata)
        save_file({"images": images}, tmp_path / f"{name}.images.safetensors")
    tool("read", tmp_path)
    assert not list(tmp_path.glob("*.error"))
    for name in CASES:
        expect_close(load_file(tmp_path / f"{name}.said.safetensors")["logits"], theirs[name][2])


@torch.no_grad()
def test_microsofts_swin_loads_by_its_names(theirs: dict) -> None:
    """Microsoft's names are ours; its files have two kinds of tensors that are not weights."""
    weights, images, logits = theirs["timm_swin"]
    model = Swin.from_options(SWIN).eval()
    load_foreign(model, weights)
    own = {**model.state_dict(), "layers.0.blocks.1.attn_mask": torch.zeros(4, 16, 16)}
    own["layers.0.blocks.1.attn.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    other = Swin.from_options(SWIN).eval()
    assert load_foreign(other, own).source == "Microsoft"
    expect_close(other(images), logits)


@torch.no_grad()
def test_a_cifar_resnet_loads_by_its_names() -> None:
    model = ResNet.from_options(SMALL["resnet"])
    randomise(model)
    theirs = {"module." + n.replace("fc.", "linear."): t for n, t in model.state_dict().items()}
    other = ResNet.from_options(SMALL["resnet"]).eval()
    assert load_foreign(other, theirs).source == "a ResNet for CIFAR"
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(other(images), model(images))


@torch.no_grad()
def test_positions_of_another_image_size_are_resized_as_timm_does(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected, images = {}, torch.randn(2, 3, 48, 48)
    for distilled in (False, True):
        small, large = timm_vit(distilled), timm_vit(distilled, image_size=48)
        randomise(small)
        large.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(small.state_dict(), large))
        options = {**VIT, "image_size": 48, "distilled": distilled}
        model = VisionTransformer.from_options(options).eval()
        assert load_foreign(model, small.state_dict()).resized == ["pos_embed"]
        expected[f"d{distilled}"] = large.eval()(images)
        expect_close(model(images), expected[f"d{distilled}"])
        metadata = {"family": "vit", "options": json.dumps(options), "foreign": "yes"}
        save_file(small.state_dict(), tmp_path / f"d{distilled}.safetensors", metadata)
        save_file({"images": images}, tmp_path / f"d{distilled}.images.safetensors")
    tool("read", tmp_path)
    for name, logits in expected.items():
        expect_close(load_file(tmp_path / f"{name}.said.safetensors")["logits"], logits)


@torch.no_grad()
def test_relative_positions_of_another_window_are_resized(tmp_path: Path) -> None:
    torch.manual_seed(8)
    small = timm_swin(4)
    randomise(small)
    options = {**SWIN, "image_size": 96, "window": 6}
    model = Swin.from_options(options).eval()
    report = load_foreign(model, small.state_dict())
    assert len(report.resized) == 7
    table = small.state_dict()["layers.1.blocks.0.attn.relative_position_bias_table"]
    got = model.state_dict()["layers.1.blocks.0.attn.relative_position_bias_table"]
    resized = nn.functional.interpolate(table.t().view(1, 4, 7, 7), (11, 11), mode="bicubic").view(4, 121).t()
    torch.testing.assert_close(got, resized)
    images = torch.randn(1, 3, 96, 96)
    metadata = {"family": "swin", "options": json.dumps(options), "foreign": "yes"}
    save_file(small.state_dict(), tmp_path / "a.safetensors", metadata)
    save_file({"images": images}, tmp_path / "a.images.safetensors")
    tool("read", tmp_path)
    expect_close(load_file(tmp_path / "a.said.safetensors")["logits"], model(images))


@torch.no_grad()
def test_pooled_models_start_from_plain_weights(theirs: dict) -> None:
    """The mixers' parameters stay; with windows closed, the logits are the plain model's."""
    for name in ("timm_vit", "timm_swin", "torchvision_bottleneck"):
        family, options, _, _ = CASES[name]
        weights, images, logits = theirs[name]
        closed = {"mixer": "context_pool", "pool_initial_sigma": 1e-3, "pool_ratio": 1e-3}
        model = FAMILIES[family].from_options({**options, **closed}).eval()
        report = load_foreign(model, weights)
        assert report.kept
        assert all("context_pool" in kept for kept in report.kept)
        expect_close(model(images), logits)


@torch.no_grad()
def test_our_own_weights_load_at_another_image_size() -> None:
    pooled = {**VIT, "mixer": "context_pool", "pool_hidden": 6}
    small, large = (VisionTransformer.from_options({**pooled, "image_size": size}) for size in (32, 48))
    randomise(small)
    report = load_foreign(large, small.state_dict())
    assert (report.resized, report.kept) == (["pos_embed"], [])
    name = "blocks.1.context_pool.predictor.conv2.weight"
    assert torch.equal(large.get_parameter(name), small.get_parameter(name))
    with pytest.raises(ValueError, match="are for vision models, but this is a Linear"):
        load_foreign(nn.Linear(2, 2), {})


def change(weights: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    rows = {**weights}
    if name == "missing":
        del rows["blocks.0.mlp.fc1.bias"], rows["norm.weight"]
    elif name == "unexpected":
        rows["blocks.7.norm1.weight"] = torch.zeros(24)
    elif name == "shape":
        rows["blocks.1.attn.qkv.weight"] = torch.zeros(71, 24)
    elif name == "classes":
        rows["head.weight"], rows["head.bias"] = torch.zeros(9, 24), torch.zeros(9)
    elif name == "positions":
        rows["pos_embed"] = torch.zeros(1, 12, 24)
    elif name == "finite":
        rows["blocks.0.mlp.fc1.bias"] = rows["blocks.0.mlp.fc1.bias"].clone()
        rows["blocks.0.mlp.fc1.bias"][3] = torch.nan
    return rows


REFUSED = {
    "missing": "missing blocks.0.mlp.fc1.bias, norm.weight",
    "unexpected": "unexpected blocks.7.norm1.weight",
    "shape": "of another shape: blocks.1.attn.qkv.weight is [71, 24], not [72, 24]",
    "classes": "its head.weight is for 9 classes, but the model has 7; build the model with as many classes, or drop",
    "positions": "of another shape: pos_embed is [1, 12, 24], not [1, 17, 24]",
    "finite": "there is NaN or infinity in blocks.0.mlp.fc1.bias; no picture would be classified",
}


@torch.no_grad()
def test_weights_that_do_not_fit_are_refused_and_nothing_is_changed(theirs: dict, tmp_path: Path) -> None:
    weights, images, _ = theirs["timm_vit"]
    for name, message in REFUSED.items():
        wrong = change(weights, name)
        model = VisionTransformer.from_options(VIT)
        before = {n: t.clone() for n, t in model.state_dict().items()}
        with pytest.raises(ValueError) as caught:
            load_foreign(model, wrong, who="file")
        assert message in str(caught.value)
        assert str(caught.value).startswith("file: ")
        assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
        metadata = {"family": "vit", "options": json.dumps(VIT), "foreign": "yes"}
        save_file(wrong, tmp_path / f"{name}.safetensors", metadata)
        save_file({"images": images}, tmp_path / f"{name}.images.safetensors")
    tool("read", tmp_path)
    for name, message in REFUSED.items():
        said = (tmp_path / f"{name}.error").read_text()
        assert message in said
        assert said.startswith(f"{name}.safetensors: ")


@torch.no_grad()
def test_a_head_of_other_classes_is_dropped_if_asked(theirs: dict, tmp_path: Path) -> None:
    weights, images, _ = theirs["timm_vit"]
    model = VisionTransformer.from_options({**VIT, "classes": 5})
    head = model.head.weight.clone()
    report = load_foreign(model, weights, drop_head=True)
    assert sorted(report.kept) == ["head.bias", "head.weight"]
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.norm.weight, weights["norm.weight"])
    metadata = {"family": "vit", "options": json.dumps({**VIT, "classes": 5}), "foreign": "drop_head"}
    save_file(weights, tmp_path / "a.safetensors", metadata)
    save_file({"images": images}, tmp_path / "a.images.safetensors")
    tool("read", tmp_path)
    assert load_file(tmp_path / "a.said.safetensors")["logits"].shape == (2, 5)


def convert(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """scripts/convert_weights.py: its exit status, and what it wrote."""
    spec = importlib.util.spec_from_file_location("convert_weights", ROOT / "scripts/convert_weights.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    capsys.readouterr()
    return script.main([str(argument) for argument in arguments]), *capsys.readouterr()


@torch.no_grad()
def test_a_pth_becomes_safetensors_that_load(
    theirs: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, images, logits = theirs["timm_deit_distilled"]
    torch.save({"model": weights, "epoch": 300}, tmp_path / "deit.pth")
    status, out, _ = convert(capsys, tmp_path / "deit.pth", tmp_path / "deit.safetensors")
    assert status == 0
    assert out.startswith(f"{tmp_path}/deit.safetensors: {len(weights)} tensors, ")
    model = VisionTransformer.from_options({**VIT, "distilled": True}).eval()
    load_foreign(model, tmp_path / "deit.safetensors")
    expect_close(model(images), logits)


class Harmful:
    def __reduce__(self) -> tuple:
        return print, ("this code came from a file",)


def test_a_pth_that_is_more_than_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": Harmful()}, tmp_path / "a.pth")
    (tmp_path / "b.pth").write_text("no pickle")
    torch.save({"epoch": 3}, tmp_path / "c.pth")
    torch.save({"ema": {"a": torch.zeros(2)}}, tmp_path / "d.pth")
    for name in "abcd":
        status, out, error = convert(capsys, tmp_path / f"{name}.pth", tmp_path / "out.safetensors")
        assert status == 1
        assert error.startswith(f"convert_weights: {tmp_path / name}.pth: ")
        assert len(error.splitlines()) == 1
        assert "this code" not in out + error
        assert not (tmp_path / "out.safetensors").exists()
    assert convert(capsys, tmp_path / "d.pth", tmp_path / "out.safetensors", "--key", "ema")[0] == 0
    assert list(load_file(tmp_path / "out.safetensors")) == ["a"]
