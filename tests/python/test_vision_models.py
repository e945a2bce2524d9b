"""ViT, DeiT, Swin and ResNet in Python and in C++ are one model each: same names, same logits, same windows through
safetensors. Their sizes are the published ones; mixers change what they should and nothing else."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from contextpool.models import (
    RESNETS,
    SWINS,
    VISION_TRANSFORMERS,
    ResNet,
    ResNetOptions,
    Swin,
    SwinOptions,
    VisionTransformer,
    VisionTransformerOptions,
    no_decay,
)

pytest.importorskip("safetensors")
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FAMILIES = {"vit": VisionTransformer, "swin": Swin, "resnet": ResNet}
NAMED = {"vit": VISION_TRANSFORMERS, "swin": SWINS, "resnet": RESNETS}
SMALL = {
    "vit": {"classes": 7, "image_size": 12, "patch": 2, "layers": 2, "features": 16, "heads": 2, "feedforward": 32},
    "swin": {"classes": 7, "image_size": 21, "patch": 2, "window": 4, "depths": "2,2,1", "features": 8,
             "head_features": 4, "feedforward_ratio": 2},
    "resnet": {"classes": 7, "image_size": 16, "depths": "1,2,1", "features": 8},
}  # fmt: skip


def tool(*arguments: str | Path) -> str:
    """Runs tests/models/vision_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    command = [str(build / "tests" / "contextpool_vision_tool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expect_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Every parameter and running statistic random, and large enough that each part of the model matters."""
    model.eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.7 / parameter[0].numel() ** 0.5)
        else:
            parameter.normal_(0, 0.2).add_(1 if name.endswith("weight") else 0)
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
        elif name.endswith("running_mean"):
            buffer.normal_(0, 0.3)


def small(family: str, **options: object) -> nn.Module:
    model = FAMILIES[family].from_options({**SMALL[family], "pool_hidden": 6, **options})
    randomise(model)
    return model


def images_of(model: nn.Module, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, model.options.image_size, model.options.image_size)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    tool("write", folder)
    return folder


def model_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.safetensors") if "." not in p.stem)


def metadata_of(file: Path) -> tuple[str, dict]:
    with safe_open(str(file), "pt") as opened:
        metadata = opened.metadata()
    return metadata["family"], json.loads(metadata["options"])


@torch.no_grad()
def test_models_written_by_cpp_say_and_predict_the_same_here(native: Path) -> None:
    files = model_files(native)
    assert len(files) > 50
    for file in files:
        family, options = metadata_of(file)
        model = FAMILIES[family].from_options(options)
        model.load_state_dict(load_file(file))
        said = load_file(native / f"{file.stem}.said.safetensors")
        model.eval()
        logits, windows = model.forward_with_windows(said["images"])
        expect_close(logits, said["logits"])
        expect_close(model(said["images"]), said["logits"])
        assert (len(windows) > 0) == (options["mixer"] == "context_pool")
        for i, window in enumerate(windows):
            if window.sigma is not None:
                expect_close(window.sigma, said[f"sigma.{i}"])


@torch.no_grad()
def test_models_written_here_say_the_same_in_cpp(native: Path, tmp_path: Path) -> None:
    torch.manual_seed(4)
    expected = {}
    for file in model_files(native):
        family, options = metadata_of(file)
        model = FAMILIES[family].from_options(options)
        randomise(model)
        images = images_of(model)
        metadata = {"family": family, "options": json.dumps(vars(model.options))}
        save_file(model.state_dict(), tmp_path / file.name, metadata)
        save_file({"images": images}, tmp_path / f"{file.stem}.images.safetensors")
        expected[file.stem] = model(images)
    tool("read", tmp_path)
    for name, logits in expected.items():
        expect_close(load_file(tmp_path / f"{name}.said.safetensors")["logits"], logits)


@pytest.fixture(scope="module")
def names() -> dict[str, tuple[str, int, float, float, dict]]:
    rows = (line.split("\t") for line in tool("names").splitlines())
    return {r[1]: (r[0], int(r[2]), float(r[3]), float(r[4]), json.loads(r[5])) for r in rows}


def test_named_models_have_the_same_options_and_sizes_in_both_languages(names: dict) -> None:
    assert set(names) == {name for named in NAMED.values() for name in named}
    for name, (family, parameters, _, _, options) in names.items():
        assert vars(NAMED[family][name]) == options, name
        with torch.device("meta"):
            model = FAMILIES[family](NAMED[family][name])
        assert sum(p.numel() for p in model.parameters()) == parameters, name


def test_the_table_of_the_docs_is_what_is_counted(names: dict) -> None:
    def digits(value: float, unit: float) -> str:
        return f"{value / unit:.{2 if value >= unit else 3}f}"

    page = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
    plain = [name for name in names if not name.startswith(("cp-", "dw-"))]
    for name in plain:
        three = [names[prefix + name] for prefix in ("", "cp-", "dw-")]
        sizes = ", ".join(digits(row[1], 1e6) for row in three)
        macs = ", ".join(digits(row[2], 1e9) for row in three[:2])
        options = three[0][4]
        row = f"| {name} | {options['image_size']}, {options['classes']} | {sizes} | {macs} | {digits(three[1][3], 1e9)} |"
        assert row in page, row


def count(family: str, name: str, **options: object) -> int:
    with torch.device("meta"):
        model = FAMILIES[family].from_options({**vars(NAMED[family][name]), **options})
    return sum(p.numel() for p in model.parameters())


def test_parameters_are_those_of_the_published_models() -> None:
    assert round(count("vit", "vit-base-patch16", image_size=384) / 1e6, 2) == 86.86
    assert round(count("vit", "vit-large-patch16", image_size=384) / 1e6, 1) == 304.7
    assert round(count("vit", "deit-small") / 1e6, 2) == 22.05
    assert round(count("vit", "deit-base") / 1e6, 2) == 86.57
    assert round(count("swin", "swin-small") / 1e6, 2) == 49.61
    assert round(count("swin", "swin-base") / 1e6, 2) == 87.77
    assert round(count("swin", "swin-base", image_size=384, window=12) / 1e6, 2) == 87.90
    assert count("resnet", "resnet-32") == 464_154
    assert count("resnet", "resnet-44") == 658_586
    assert count("resnet", "resnet-46") == 677_146
    assert round(count("resnet", "resnet-50") / 1e6, 2) == 25.56
    assert round(count("resnet", "resnet-101") / 1e6, 2) == 44.55
    assert count("vit", "cp-vit-base-patch16") - count("vit", "vit-base-patch16") == 12 * 166_346
    assert round(count("vit", "cp-vit-base-patch16", image_size=384) / 1e6, 2) == 88.86
    assert round(count("swin", "cp-swin-base") / 1e6, 2) == 89.07
    assert count("resnet", "cp-resnet-50") - count("resnet", "resnet-50") == 258_966
    assert round(count("resnet", "cp-resnet-44") / 1e6, 3) == 0.680
    assert round(count("resnet", "cp-resnet-46") / 1e6, 3) == 0.698


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_windows_leave_the_plain_model(family: str) -> None:
    torch.manual_seed(1)
    pooled = small(family, mixer="context_pool", pool_initial_sigma=1e-3, pool_ratio=1e-3)
    plain = small(family)
    plain.load_state_dict({n: t for n, t in pooled.state_dict().items() if "context_pool" not in n})
    images = images_of(plain)
    expect_close(pooled(images), plain(images))
    open_ = small(family, mixer="context_pool")
    open_.load_state_dict(pooled.state_dict())
    assert not torch.allclose(open_(images), plain(images), atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mixer", ("none", "context_pool", "depthwise"))
def test_channels_last_says_the_same(family: str, mixer: str) -> None:
    model = small(family, mixer=mixer)
    images = images_of(model)
    expected = model(images)
    expect_close(model.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mixer", ("context_pool", "depthwise"))
def test_gradients_reach_every_parameter(family: str, mixer: str) -> None:
    torch.manual_seed(2)
    readout = {"readout": "mean"} if family == "vit" else {}
    model = small(family, mixer=mixer, pool_ratio=0.5, **readout)
    model(images_of(model, 4)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_the_last_mixer_matters_unless_the_head_reads_the_class_token() -> None:
    for readout, expected in (("token", True), ("mean", False)):
        model = small("vit", mixer="context_pool", readout=readout)
        model(images_of(model)).square().sum().backward()
        silent = {n.split(".")[1] for n, p in model.named_parameters() if "pool" in n and not (p.grad.abs().sum() > 0)}
        assert silent == ({"1"} if expected else set())


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_windows_start_at_the_initial_size(family: str) -> None:
    options = NAMED[family][{"vit": "cp-vit-cifar", "swin": "cp-swin-tiny", "resnet": "cp-resnet-20"}[family]]
    model = FAMILIES[family].from_options({**vars(options), "image_size": 32, "classes": 3}).eval()
    _, windows = model.forward_with_windows(torch.randn(1, 3, 32, 32))
    assert len(windows) == {"vit": 6, "swin": 12, "resnet": 3}[family]
    for window in windows:
        torch.testing.assert_close(window.sigma, torch.full_like(window.sigma, options.pool_initial_sigma))


@torch.no_grad()
@pytest.mark.parametrize("distilled", (False, True))
@pytest.mark.parametrize("windows", ("grid", "row"))
def test_class_and_distillation_tokens_pass_the_mixer_by(distilled: bool, windows: str) -> None:
    """With a mixer that gives 0 the patches lose their attention branch; what the tokens said before stays theirs: in
    a model of one layer the logits are those without a mixer."""
    one = {"layers": 1, "distilled": distilled, "windows": windows}
    mixed, plain = small("vit", mixer="depthwise", **one), small("vit", **one)
    mixed.blocks[0].depthwise.weight.normal_(0, 100)
    plain.load_state_dict({n: t for n, t in mixed.state_dict().items() if "depthwise" not in n})
    images = images_of(plain)
    assert torch.equal(mixed(images), plain(images))
    two = small("vit", mixer="depthwise", distilled=distilled, windows=windows, layers=2)
    changed = small("vit", distilled=distilled, windows=windows, layers=2)
    changed.load_state_dict({n: t for n, t in two.state_dict().items() if "depthwise" not in n})
    assert not torch.allclose(two(images), changed(images), atol=1e-3)  # one layer later the patches are seen


@torch.no_grad()
def test_a_distilled_model_gives_both_heads_in_training_and_their_mean_after_it() -> None:
    model = small("vit", distilled=True)
    images = images_of(model)
    mean = model(images)
    both = model.train()(images)
    assert mean.shape == (2, 7)
    assert both.shape == (2, 2, 7)
    expect_close(both.mean(1), mean)


def plain_swin_attention(attention: nn.Module, x: Tensor) -> Tensor:
    """The formula in float64, pixel by pixel: a pixel sees those of its shifted window, not across the border."""
    window, heads, (height, width) = attention.window, attention.heads, x.shape[1:3]
    q, k, v = attention.qkv(x).unflatten(3, (3, heads, -1)).unbind(3)
    shifts = [window // 2 if attention.shifted and size > window else 0 for size in (height, width)]
    table = attention.relative_position_bias_table.view(2 * window - 1, 2 * window - 1, heads)

    def cell(i: int, j: int) -> tuple[int, int]:
        return (i - shifts[0]) // window, (j - shifts[1]) // window

    pixels = [(i, j) for i in range(height) for j in range(width)]
    out = torch.zeros_like(v)
    for i, j in pixels:
        near = [p for p in pixels if cell(*p) == cell(i, j)]
        rows, columns = torch.tensor([p[0] for p in near]), torch.tensor([p[1] for p in near])
        scores = torch.einsum("bhd,bnhd->bnh", q[:, i, j], k[:, rows, columns]) / q.shape[-1] ** 0.5
        scores = scores + table[i - rows + window - 1, j - columns + window - 1]
        out[:, i, j] = torch.einsum("bnh,bnhd->bhd", scores.softmax(1), v[:, rows, columns])
    return attention.proj(out.flatten(3))


@torch.no_grad()
@pytest.mark.parametrize("shape", ((8, 8), (7, 9), (3, 5), (4, 6), (1, 11)))
@pytest.mark.parametrize("block", (0, 1))
def test_swin_attention_is_its_formula_on_any_map(shape: tuple[int, int], block: int) -> None:
    torch.manual_seed(3)
    attention = small("swin").double().layers[0].blocks[block].attn
    x = torch.randn(2, *shape, 8, dtype=torch.float64)
    torch.testing.assert_close(attention(x), plain_swin_attention(attention, x), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_swin_takes_images_of_any_size() -> None:
    model = small("swin", mixer="context_pool")
    for size in ((32, 32), (5, 17), (33, 20), (1, 1)):
        logits = model(torch.randn(2, 3, *size))
        assert logits.shape == (2, 7)
        assert logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_stochastic_depth_keeps_the_mean_and_does_nothing_in_evaluation(family: str) -> None:
    from contextpool.models._vision import drop_path

    torch.manual_seed(5)
    branch = torch.ones(20_000, 2, 3)
    dropped = drop_path(branch, 0.3, True)
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.7).item()}
    assert torch.equal(dropped.amin((1, 2)), dropped.amax((1, 2)))  # an image as a whole
    assert abs(dropped.mean().item() - 1) < 0.02
    model = small(family, stochastic_depth=0.5)
    images = images_of(model, 8)
    assert torch.equal(model(images), model(images))
    for module in model.modules():  # but of norms, whose training mode is of another kind
        module.training = not isinstance(module, nn.BatchNorm2d)
    assert not torch.equal(model(images), model(images))


def test_tokens_tables_norms_and_biases_have_no_decay() -> None:
    without = {n for n, p in small("vit", distilled=True, mixer="context_pool").named_parameters() if no_decay(n, p)}
    assert {"cls_token", "dist_token", "pos_embed", "norm.weight", "blocks.0.mlp.fc1.bias"} <= without
    assert not any(n.endswith(("qkv.weight", "conv1.weight", "proj.weight", "head.weight")) for n in without)
    swin = {n for n, p in small("swin").named_parameters() if no_decay(n, p)}
    assert "layers.1.blocks.0.attn.relative_position_bias_table" in swin
    assert "layers.0.downsample.reduction.weight" not in swin


@torch.no_grad()
def test_a_pooling_stride_halves_the_map_in_place_of_the_convolution() -> None:
    for mixer in ("context_pool", "depthwise", "average"):
        model = small("resnet", mixer=mixer, pool_stride=2)
        assert [model.get_submodule(f"layer{s}.0.conv1").stride for s in (1, 2, 3)] == [(1, 1)] * 3
        logits, windows = model.forward_with_windows(torch.randn(2, 3, 15, 16))
        assert logits.shape == (2, 7)
        if mixer == "context_pool":
            assert [tuple(w.sigma.shape) for w in windows] == [(2, 8, 8), (2, 4, 4), (2, 4, 4)]
            assert [tuple(w.log_weight.shape) for w in windows] == [(2, 15, 16), (2, 8, 8), (2, 4, 4)]


@torch.no_grad()
def test_cifar_shortcuts_take_every_second_pixel_and_add_empty_channels() -> None:
    model = small("resnet", features=4, depths="1,1", mixer_stages=2)
    block = model.layer2[0]
    block.bn2.weight.zero_()
    block.bn2.bias.zero_()  # the branch is 0
    x = torch.rand(2, 4, 7, 6)
    expected = torch.zeros(2, 8, 4, 3)
    expected[:, 2:6] = x[:, :, ::2, ::2]
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    (
        ("vit", {"image_size": 13}, "image_size must be a multiple of the patch, 2, but is 13"),
        ("vit", {"heads": 3}, "heads must divide the 16 features, but are 3"),
        ("vit", {"windows": "gird"}, 'windows is "gird", expected one of grid, row'),
        ("vit", {"mixer": "contextpool"}, 'did you mean "context_pool"'),
        ("vit", {"dropout": 1.0}, r"dropout must be in \[0, 1\), but is 1"),
        ("vit", {"pool_ration": 1.0}, 'unknown option "pool_ration"; did you mean "pool_ratio"'),
        ("vit", {"distilled": 1}, "distilled must be of type bool"),
        ("swin", {"depths": "2,,2"}, 'depths must be the numbers of blocks .*but are "2,,2"'),
        ("swin", {"head_features": 3}, "head_features must divide the 8 features"),
        ("resnet", {"pool_stride": 2}, "pool_stride 2 needs a mixer"),
        ("resnet", {"pool_stride": 2, "mixer": "depthwise", "mixer_residual": "plain"}, "stride 2 has no residual"),
        ("resnet", {"block": "bottleneck"}, "the CIFAR kind has basic blocks"),
        ("resnet", {"mixer_stages": 4}, "mixer_stages must be from 0 to the 3 stages"),
    ),
)  # fmt: skip
def test_options_that_cannot_be_built_are_refused(family: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FAMILIES[family].from_options({**SMALL[family], **options})


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_no_batch_of_images_is_refused(family: str) -> None:
    model = small(family)
    with pytest.raises(ValueError, match=r"images must be \[batch, 3, height, width\].*unsqueeze\(0\)"):
        model(torch.randn(3, 12, 12))
    with pytest.raises(ValueError, match=r"permute\(0, 3, 1, 2\)"):
        model(torch.randn(2, 12, 12, 3))
    with pytest.raises(ValueError, match="must be floating point"):
        model(torch.zeros(2, 3, 12, 12, dtype=torch.uint8))
    if family == "vit":
        with pytest.raises(ValueError, match="must be 12 x 12 pixels, but are 14 x 12"):
            model(torch.randn(2, 3, 14, 12))


def test_defaults_are_options() -> None:
    for kind in (VisionTransformerOptions, SwinOptions, ResNetOptions):
        assert kind.from_dict(vars(kind()), "x") == kind()
