"""Whole models, as the command-line program trains them."""

from .language_model import LanguageModel, LanguageModelCache, LanguageModelOptions

__all__ = ["LanguageModel", "LanguageModelCache", "LanguageModelOptions"]
