"""Whole models, as the command-line program trains them."""

from ._vision import LogitsAndWindows, no_decay
from .foreign import ForeignReport, load_foreign
from .language_model import LanguageModel, LanguageModelCache, LanguageModelOptions
from .resnet import RESNETS, ResNet, ResNetOptions
from .swin import SWINS, Swin, SwinOptions
from .vision_transformer import VISION_TRANSFORMERS, VisionTransformer, VisionTransformerOptions

__all__ = [
    "RESNETS",
    "SWINS",
    "VISION_TRANSFORMERS",
    "ForeignReport",
    "LanguageModel",
    "LanguageModelCache",
    "LanguageModelOptions",
    "LogitsAndWindows",
    "ResNet",
    "ResNetOptions",
    "Swin",
    "SwinOptions",
    "VisionTransformer",
    "VisionTransformerOptions",
    "load_foreign",
    "no_decay",
]
