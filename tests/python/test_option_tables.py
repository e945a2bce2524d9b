"""The options of ContextPool stand in one table, and those of models are the same in both languages: names, words and
defaults."""

import dataclasses
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from contextpool.models import LanguageModel, ResNet, Swin, Translator, VisionTransformer
from contextpool.models.language_model import LanguageModelOptions
from contextpool.models.resnet import ResNetOptions
from contextpool.models.swin import SwinOptions
from contextpool.models.translator import TranslatorOptions
from contextpool.models.vision_transformer import VisionTransformerOptions
from contextpool.nn import ContextPool1d, ContextPool2d
from contextpool.nn._option_table import WORDS, PoolOptions

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {
    "language_model": (LanguageModel, LanguageModelOptions),
    "translator": (Translator, TranslatorOptions),
    "vision_transformer": (VisionTransformer, VisionTransformerOptions),
    "swin": (Swin, SwinOptions),
    "resnet": (ResNet, ResNetOptions),
}


@pytest.fixture(scope="module")
def cpp_options(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    subprocess.run([build / "tests/contextpool_models_tool", "options", folder], check=True)
    return folder


def test_files_are_what_the_table_says() -> None:
    pytest.importorskip("tomllib", reason="Python 3.10 has no TOML")
    command = [sys.executable, str(ROOT / "scripts/option_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_family_has_a_class_here(cpp_options: Path) -> None:
    assert {path.stem for path in cpp_options.glob("*.json")} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_languages_have_the_same_defaults(family: str, cpp_options: Path) -> None:
    cpp = json.loads((cpp_options / f"{family}.json").read_text())
    python = dataclasses.asdict(FAMILIES[family][1]())
    assert python == cpp
    assert {name: type(value) for name, value in python.items()} == {name: type(value) for name, value in cpp.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_both_languages_take_the_same_words(family: str, cpp_options: Path) -> None:
    model = FAMILIES[family][0]
    compared = 0
    for line in (cpp_options / f"{family}.txt").read_text().splitlines():
        option, message = line.split(" ", 1)
        options = {"mixer": "context_pool", option: "?"}
        if "vocabulary" in inspect.signature(FAMILIES[family][1]).parameters:
            options["vocabulary"] = 30
        with pytest.raises(ValueError) as refused:
            model.from_options(options)
        words = re.search(r"expected one of ([^;]*)", message)
        if words:
            compared += 1
            assert words[1] in str(refused.value), f"{option}: {refused.value}"
    assert compared >= 5


@pytest.mark.parametrize("module", (ContextPool1d, ContextPool2d), ids=lambda module: module.__name__)
def test_signature_names_every_option(module: type) -> None:
    parameters = inspect.signature(module).parameters
    of_models = {field.name.removeprefix("pool_") for field in dataclasses.fields(PoolOptions)}
    assert of_models < set(parameters)
    for option, words in WORDS.items():
        assert parameters[option].default == words[0]
        for word in words:
            assert f'"{word}": ' in ContextPool1d.__doc__
