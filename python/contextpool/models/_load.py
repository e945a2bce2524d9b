"""The trained model of a run or a file, whatever its family."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ._checkpoint import family_of, load_weights, read_model
from .language_model import LanguageModel
from .resnet import ResNet
from .swin import Swin
from .translator import Translator
from .vision_transformer import VisionTransformer

_VISION: dict[str, Callable[[Mapping[str, Any], str], nn.Module]] = {
    "vision transformer": VisionTransformer.from_options,
    "swin": Swin.from_options,
    "resnet": ResNet.from_options,
}
_OTHERS: dict[str, Callable[[Path], nn.Module]] = {
    "language model": LanguageModel.load,
    "translator": Translator.load,
}


def load(path: str | os.PathLike[str]) -> nn.Module:
    """The trained model of a run folder, of a checkpoint's folder, or of a file in it, of the class that the file names;
    on the CPU, in eval mode. Of a folder that has the average of the weights, that. Files are verified as
    :meth:`LanguageModel.load` says. Needs the package ``safetensors``."""
    family = family_of(Path(path))
    if family in _OTHERS:
        return _OTHERS[family](Path(path))
    if family not in _VISION:
        known = ", ".join(sorted({*_OTHERS, *_VISION}))
        raise ValueError(f"{path}: a model of the family {family!r}, which is not one of {known}")
    file, options, weights = read_model(Path(path), family)
    model = _VISION[family](options, str(file))
    load_weights(model, weights, file)
    return model.eval()
