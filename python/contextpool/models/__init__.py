"""Whole models, as the command-line program trains them."""

from ._load import load
from ._vision import ImageClassifier, LogitsAndWindows, no_decay
from .beam_search import BeamSearchOptions, Hypothesis
from .foreign import ForeignReport, load_foreign
from .language_model import LanguageModel, LanguageModelCache, LanguageModelOptions
from .resnet import RESNETS, ResNet, ResNetOptions
from .swin import SWINS, Swin, SwinOptions
from .translator import Translator, TranslatorCache, TranslatorOptions, label_smoothed_loss
from .vision_transformer import VISION_TRANSFORMERS, VisionTransformer, VisionTransformerOptions

__all__ = [
    "RESNETS",
    "SWINS",
    "VISION_TRANSFORMERS",
    "BeamSearchOptions",
    "ForeignReport",
    "Hypothesis",
    "ImageClassifier",
    "LanguageModel",
    "LanguageModelCache",
    "LanguageModelOptions",
    "LogitsAndWindows",
    "ResNet",
    "ResNetOptions",
    "Swin",
    "SwinOptions",
    "Translator",
    "TranslatorCache",
    "TranslatorOptions",
    "VisionTransformer",
    "VisionTransformerOptions",
    "label_smoothed_loss",
    "load",
    "load_foreign",
    "no_decay",
]
