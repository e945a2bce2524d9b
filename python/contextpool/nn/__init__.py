"""Modules that predict and pool, and what to build models of. docs/module.md shows how to put them into a model."""

from .attention import Attention, AttentionCache, Reach
from .block import BlockCache, MixOptions, TransformerBlock
from .context_pool import ContextPool1d, ContextPool2d, ContextPoolCache, Windows
from .cross_attention import CrossAttention, CrossMemory
from .decoder_block import DecoderBlock, DecoderBlockCache
from .depthwise import Depthwise, DepthwiseCache
from .mixer import Mixer, MixerCache, MixerOptions, make_mixer, mixer_kinds
from .positions import Positions, rotate

__all__ = [
    "Attention",
    "AttentionCache",
    "BlockCache",
    "ContextPool1d",
    "ContextPool2d",
    "ContextPoolCache",
    "CrossAttention",
    "CrossMemory",
    "DecoderBlock",
    "DecoderBlockCache",
    "Depthwise",
    "DepthwiseCache",
    "MixOptions",
    "Mixer",
    "MixerCache",
    "MixerOptions",
    "Positions",
    "Reach",
    "TransformerBlock",
    "Windows",
    "make_mixer",
    "mixer_kinds",
    "rotate",
]
