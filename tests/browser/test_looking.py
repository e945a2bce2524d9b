"""The pages of `contextpool inspect`: in a real browser where there is one, and how the program answers bad input.

A page that is opened with #test checks itself (the end of src/eval/looking.html): that its windows are those that the
program computed, that mouse and keys choose them, and that nothing users wrote became markup. Debian's chromium is used
(`apt-get install chromium`); without it these tests are skipped.
"""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from program import call, contextpool_says, log

image = pytest.importorskip("PIL.Image", reason="this Python has no Pillow")

CHROMIUM = shutil.which("chromium")
browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (apt-get install chromium)")
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
EVIL = "</script><script>alert(1)</script><b>&"
VISION = ["--device", "cpu", "--threads", 1, "--steps", 2, "--batch", 8, "--checkpoint-every", 2, "--pool-hidden", 4]
VIT = ["--layers", 2, "--features", 12, "--heads", 2, "--feedforward", 16, "--data", "shapes", "--dev-images", 40]
LINES = ["--layers", 2, "--features", 16, "--heads", 2, "--feedforward", 32, "--pool-hidden", 8, "--steps", 2,
         "--length", 32, "--batch", 2, "--device", "cpu", "--eval-tokens", 100]  # fmt: skip

NUMBERS = ["--data", "numbers-de", "--numbers", 500, "--vocabulary-size", 80, "--max-length", 64, "--layers", 2,
           "--features", 16, "--heads", 2, "--feedforward", 32, "--batch", 500, "--steps", 2, "--checkpoint-every", 2,
           "--eval-sentences", 2, "--device", "cpu", "--threads", 1]  # fmt: skip


def train(folder: Path, *flags: object) -> Path:
    contextpool_says("train", "--run", folder, *flags)
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("vit") / "run"
    return train(run, "--model", "cp-vit-cifar", *VIT, *VISION, "--pool-groups", 3)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "text").write_text("Windows of a line of text have sizes of their own. " * 100)
    return train(folder / "run", "--model", "cp-tiny", "--data", folder / "text", *LINES, "--pool-groups", 2)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("translator") / "run", "--model", "cp-nmt-tiny", *NUMBERS)


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "a picture <b>.png"
    image.radial_gradient("L").convert("RGB").resize((90, 60)).save(path)
    return path


def data_of(page: Path) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    return json.loads(found)


def checked_by_itself(page: Path, profile: Path) -> str:
    done = subprocess.run(
        [str(CHROMIUM), "--headless", *QUIET, f"--user-data-dir={profile}", "--dump-dom", f"{page.as_uri()}#test"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'data-test="([^"]*)"', done.stdout)
    return html.unescape(found[1]) if found else f"no answer: {done.stderr[-500:]}"


@browser
@pytest.mark.parametrize("windows", ["grid", "row"])
def test_the_page_of_a_picture_is_right_in_a_browser(vit: Path, photo: Path, tmp_path: Path, windows: str) -> None:
    if windows == "row":
        vit = train(tmp_path / "run", "--model", "cp-vit-cifar", *VIT, *VISION, "--windows", "row")
    contextpool_says("inspect", "--run", vit, "--image", photo, "--out", tmp_path / "page.html", "--images", 20)
    assert checked_by_itself(tmp_path / "page.html", tmp_path / "profile").startswith("good: ")


@browser
def test_targets_with_a_stride_are_right_in_a_browser(photo: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", "--model", "cp-resnet-20", "--features", 4, "--depths", "1,1,1", "--pool-stride", 2,
                "--data", "shapes", "--dev-images", 40, *VISION)  # fmt: skip
    contextpool_says("inspect", "--run", run, "--image", photo, "--out", tmp_path / "page.html", "--images", 0)
    assert [layer["stride"] for layer in data_of(tmp_path / "page.html")["layers"]][:2] == [2, 2]
    assert checked_by_itself(tmp_path / "page.html", tmp_path / "profile").startswith("good: ")


@browser
def test_the_page_of_a_line_is_right_in_a_browser(language_model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    contextpool_says("inspect", "--run", language_model, "--text", f"Wörter: {EVIL}", "--out", page)
    assert checked_by_itself(page, tmp_path / "profile").startswith("good: ")


@browser
def test_the_page_of_a_sentence_is_right_in_a_browser(translator: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    contextpool_says("inspect", "--run", translator, "--text", "two hundred and three", "--out", page)
    assert checked_by_itself(page, tmp_path / "profile").startswith("good: ")


def test_the_page_of_a_sentence_has_its_pieces_and_the_end(translator: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    contextpool_says("inspect", "--run", translator, "--text", "two hundred and three", "--out", page)
    data = data_of(page)
    assert "".join(data["tokens"]).replace(" ", "") == "twohundredandthree\N{RETURN SYMBOL}"
    assert len(data["layers"]) == 2 and not data["causal"]
    assert all(len(group) == len(data["tokens"]) for layer in data["layers"] for group in layer["sigma"])


def test_a_page_needs_no_other_file(vit: Path, language_model: Path, photo: Path, tmp_path: Path) -> None:
    contextpool_says("inspect", "--run", vit, "--image", photo, "--out", tmp_path / "a.html", "--images", 0)
    contextpool_says("inspect", "--run", language_model, "--text", "a line", "--out", tmp_path / "b.html")
    for page in (tmp_path / "a.html", tmp_path / "b.html"):
        text = page.read_text()
        assert "default-src 'none'" in text and "http:" not in text and "https:" not in text
        assert not re.search(r"<(link|img|iframe|script[^>]* src)", text)


def test_what_users_wrote_is_data(language_model: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    contextpool_says("inspect", "--run", language_model, "--text", EVIL, "--out", page)
    assert page.read_text().count("<script") == 2
    assert "".join(data_of(page)["tokens"]) == EVIL


def test_the_page_has_every_layer_group_and_validation_picture(vit: Path, photo: Path, tmp_path: Path) -> None:
    contextpool_says("inspect", "--run", vit, "--image", photo, "--out", tmp_path / "page.html", "--images", 24)
    data = data_of(tmp_path / "page.html")
    assert data["input"] == photo.name and data["sizesOf"] == "24 validation pictures" and len(data["answers"]) == 5
    assert sum(share for _, share in data["answers"]) <= 1.001
    assert len(data["layers"]) == 2
    for layer in data["layers"]:
        assert [len(group) for group in layer["sigma"]] == [256] * 3 == [len(group) for group in layer["logWeight"]]
        assert sum(layer["counts"]) == 24 * 3 * 256
        sizes = [size for group in layer["sigma"] for size in group]
        assert min(sizes) > 0 and max(sizes) <= layer["top"]


def test_training_logs_the_windows_of_pictures(vit: Path) -> None:
    windows = log(vit)[-1]["windows"]
    assert len(windows) == 2
    for layer in windows:  # sizes start at 1 patch: about 4 pi patches count in the plane, 2 sqrt(pi) along a row
        assert layer["sigma"] == pytest.approx(1, abs=0.1) and 8 < layer["tokens"] < 13


def refused(*arguments: object) -> str:
    done = call("inspect", *arguments)
    assert done.returncode in (1, 2) and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("contextpool: using ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_bad_input_is_one_clear_line(vit: Path, language_model: Path, photo: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    (tmp_path / "text.jpg").write_text("this is no picture")
    assert "one of --image FILE and --text LINE is needed" in refused("--run", vit)
    assert "no such picture" in refused("--run", vit, "--image", tmp_path / "none.png", "--out", out)
    assert "text.jpg" in refused("--run", vit, "--image", tmp_path / "text.jpg", "--out", out)
    assert "looked at with --image, not --text" in refused("--run", vit, "--text", "a line", "--out", out)
    assert "looked at with --text" in refused("--run", language_model, "--image", photo, "--out", out)
    assert "has 5000 tokens, expected at most 4096" in refused("--run", language_model, "--text", "a" * 5000, "--out", out)
    assert "no token" in refused("--run", language_model, "--text", "", "--out", out)
    assert "is not a run folder" in refused("--run", tmp_path / "none", "--image", photo, "--out", out)
    assert not out.exists()
    out.write_text("mine")
    assert "exists; --force" in refused("--run", vit, "--image", photo, "--out", out)
    assert out.read_text() == "mine"
    contextpool_says("inspect", "--run", vit, "--image", photo, "--out", out, "--force", "--images", 0)


def test_a_model_without_windows_to_show_is_refused(photo: Path, tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", "--model", "vit-cifar", *VIT, *VISION)
    assert "no ContextPool" in refused("--run", plain, "--image", photo, "--out", tmp_path / "page.html")
    other = train(tmp_path / "other", "--model", "cp-vit-cifar", *VIT, *VISION, "--pool-locality", "none")
    assert 'locality "none"' in refused("--run", other, "--image", photo, "--out", tmp_path / "page.html")


def test_a_run_whose_data_are_gone_can_be_looked_at(vit: Path, photo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(vit, run)
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r'(?m)^data = .*$', 'data = "/gone"', config))
    done = call("inspect", "--run", run, "--image", photo, "--out", tmp_path / "page.html")
    assert done.returncode == 0 and "/gone: no pictures found" in done.stderr
    assert data_of(tmp_path / "page.html")["sizesOf"] == "this picture"
