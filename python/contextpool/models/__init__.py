"""Whole models, as the command-line program trains them."""

from .beam_search import BeamSearchOptions, Hypothesis
from .language_model import LanguageModel, LanguageModelCache, LanguageModelOptions
from .translator import Translator, TranslatorCache, TranslatorOptions, label_smoothed_loss

__all__ = [
    "BeamSearchOptions",
    "Hypothesis",
    "LanguageModel",
    "LanguageModelCache",
    "LanguageModelOptions",
    "Translator",
    "TranslatorCache",
    "TranslatorOptions",
    "label_smoothed_loss",
]
