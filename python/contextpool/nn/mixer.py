"""Local mixers behind one interface, so that a model takes one by its name and never asks which it is.

=============  ==========================================================================================
none           x
context_pool   CP(x), the adaptive windows of :class:`ContextPool1d` and :class:`ContextPool2d`
depthwise      DW(x), a depthwise convolution with bias
canon          x + DW(x), a short one without bias that starts as torch starts convolutions
dynamic        x + sum_k (w_k + v_k(h)) x_(i - left + k), whose taps depend on the context h as well
=============  ==========================================================================================

and, for depthwise and context_pool, as ``residual`` says, with M(x) the above: none M(x), plain x + M(x), scale
x + s M(x), gated x + (s + up(down(h))) M(x). Rows are [B, N, features], causal or centred; maps are
[B, features, H, W], centred. docs/mixers.md compares them.

A new mixer is one file in ``nn/mixers/`` and one line in the table below (and the same in C++).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch

from ._mixer import Mixer, MixerCache, MixerOptions
from ._options import check_word
from ._residual import RESIDUALS
from .depthwise import make_depthwise
from .mixers.canon import make_canon
from .mixers.context_pool import make_context_pool
from .mixers.dynamic import make_dynamic
from .mixers.none import make_none

__all__ = ["Mixer", "MixerCache", "MixerOptions", "make_mixer", "mixer_kinds", "parse_places"]

Device = torch.device | str | int | None


class _Kind(NamedTuple):
    make: Callable[[MixerOptions, Device, torch.dtype | None], Mixer]
    taps: tuple[int, int, int] = (0, 0, 0)  # unless given: causal, centred, of maps
    residual: str = "none"  # unless given


_KINDS = {
    "none": _Kind(make_none),
    "context_pool": _Kind(make_context_pool),
    "depthwise": _Kind(make_depthwise, (15, 15, 3)),
    "canon": _Kind(make_canon, (4, 3, 3), "plain"),
    "dynamic": _Kind(make_dynamic, (4, 3, 3), "plain"),
}


def mixer_kinds() -> tuple[str, ...]:
    """The words for ``MixerOptions.kind``."""
    return tuple(_KINDS)


def make_mixer(options: MixerOptions, *, device: Device = None, dtype: torch.dtype | None = None) -> Mixer:
    """The mixer of these options; ValueError with the reason where they cannot be built. "none" has no parameters and
    returns x."""
    o = options
    check_word("Mixer", "kind", o.kind, mixer_kinds())
    if o.dims not in (1, 2):
        raise ValueError(f"Mixer: dims must be 1 (rows) or 2 (maps), but is {o.dims}")
    if o.dims == 2 and o.causal:
        raise ValueError("Mixer: a map has no order, so it cannot be causal")
    for name in ("taps", "context_features"):
        if getattr(o, name) < 0:
            raise ValueError(f"Mixer: {name} must not be negative, but is {getattr(o, name)}")
    kind = _KINDS[o.kind]
    taps = o.taps or kind.taps[2 if o.dims == 2 else 0 if o.causal else 1]
    o = dataclasses.replace(o, taps=taps, residual=o.residual or kind.residual)
    check_word("Mixer", "residual", o.residual, RESIDUALS)
    return kind.make(o, device, dtype)


def parse_places(who: str, text: str, places: str) -> dict[str, str]:
    """``"A=canon,C=canon,O=context_pool"`` as ``{"A": "canon", "C": "canon", "O": "context_pool"}``; ``"AC=canon"`` is
    short for the first two. ``places`` are the letters that there are, ``who`` opens the messages. Places that are not
    named, or are given "none", are not in the result, which is in the order of ``places``."""
    found: dict[str, str] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        letters, equals, mixer = part.partition("=")
        if not equals or not letters:
            raise ValueError(f'{who}: mix must read PLACE=MIXER,..., as in "A=canon", but has "{part}"')
        check_word(who, "a mixer of mix", mixer, mixer_kinds())
        for place in letters:
            if place not in places:
                raise ValueError(f'{who}: mix has the place "{place}", but the places are {places}')
            if place in found:
                raise ValueError(f"{who}: mix has the place {place} twice")
            found[place] = mixer
    return {place: found[place] for place in places if found.get(place, "none") != "none"}
