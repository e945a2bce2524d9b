"""Modules, caches and their methods have the same names in both languages, and what a model says of its windows."""

import re
from pathlib import Path

import pytest
import torch

import contextpool.models
import contextpool.nn
from contextpool.models import LanguageModel, Translator
from contextpool.nn import TransformerBlock

HEADERS = Path(__file__).resolve().parents[2] / "include/contextpool"
CLASS = re.compile(r"^(class|struct) (\w+)[^;{]*\{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
METHOD = re.compile(r"^  (?:virtual )?[\w:<>,& ]+[ &](\w+)\((.*)$", re.MULTILINE)
# torch::nn's own; the residual stream of two blocks as one operator, which Python leaves to the compiler; and defaults
# for maps, which Python's modules have themselves, since options there name only what differs.
OF_CPP = {"reset", "pretty_print", "pass", "for_maps"}


def classes(layer: str) -> dict[str, str]:
    """The public part of every class of a layer's headers, by the name that Python gives it."""
    found = {}
    for header in sorted((HEADERS / layer).glob("*.h")):
        for kind, name, body in CLASS.findall(re.sub(r" *//.*", "", header.read_text())):
            public = body.partition(" public:\n")[2] if kind == "class" else body
            found[name.removesuffix("Impl")] = re.split(r"^ (?:private|protected):", public, flags=re.MULTILINE)[0]
    return found


@pytest.mark.parametrize("layer", ("nn", "models"))
def test_modules_and_caches_have_the_same_names(layer: str) -> None:
    headers = "".join(header.read_text() for header in (HEADERS / layer).glob("*.h"))
    names = set(re.findall(r"^TORCH_MODULE\((\w+)\)", headers, re.MULTILINE))
    names |= {name for name in classes(layer) if name.endswith("Cache") and name != "TokenCache"}
    assert len(names) >= 7
    parts = {"LocalWindows", "Linear"}  # of attention; of all, in Python torch's
    assert names <= {*getattr(contextpool, layer).__all__, *parts}


@pytest.mark.parametrize("layer", ("nn", "models"))
def test_methods_have_the_same_names(layer: str) -> None:
    compared = 0
    for name, public in classes(layer).items():
        here = getattr(getattr(contextpool, layer), name, None)
        for method, rest in METHOD.findall(public) if here else ():
            accessor = rest.startswith(") const")  # an attribute or a property in Python
            if method not in {name, f"{name}Impl"} | OF_CPP and not accessor:
                compared += 1
                assert hasattr(here, method), f"{name}.{method}"
    assert compared >= 15


def test_a_block_says_what_its_first_pool_predicts() -> None:
    torch.manual_seed(1)
    block = TransformerBlock(8, 2, 16, mixer="context_pool", placement="before_attention", pool={"hidden": 4}).eval()
    x, lengths = torch.randn(2, 9, 8), [9, 6]
    y, windows = block.forward_with_windows(x, lengths=lengths)
    torch.testing.assert_close(y, block(x, lengths=lengths))
    real = torch.arange(9) < torch.tensor(lengths).unsqueeze(1)
    padded = block.norm1(x.masked_fill(~real.unsqueeze(2), 0))
    _, expected = block.context_pool(padded, mask=real, return_windows=True)
    assert windows is not None
    torch.testing.assert_close(windows.sigma, expected.sigma)
    torch.testing.assert_close(windows.log_weight, expected.log_weight)
    assert TransformerBlock(8, 2, 16, mixer="depthwise").forward_with_windows(x)[1] is None


@torch.no_grad()
def test_models_say_what_each_layer_predicts() -> None:
    torch.manual_seed(2)
    small = {"vocabulary": 30, "layers": 3, "features": 8, "heads": 2, "feedforward": 16, "pool_hidden": 4}
    tokens = torch.randint(30, (2, 11))
    of_text = LanguageModel.from_options({**small, "mixer": "context_pool"}).eval().windows(tokens)
    of_source = Translator.from_options({**small, "mixer": "context_pool"}).eval().encoder_windows(tokens)
    for windows in (of_text, of_source):
        assert [w.sigma.shape for w in windows] == [(2, 11)] * 3
        assert all((w.sigma > 0).all() and w.log_weight.isfinite().all() for w in windows)
    assert LanguageModel.from_options(small).windows(tokens) == []
    assert Translator.from_options(small).encoder_windows(tokens) == []
