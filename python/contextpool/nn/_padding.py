"""Which tokens of a batch are real: lengths, a mask, or torch's key_padding_mask, all turned into one boolean mask."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

Lengths = Tensor | Sequence[int]


def real_tokens(
    who: str,
    shape: Sequence[int],
    device: torch.device,
    lengths: Lengths | None = None,
    mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
) -> Tensor | None:
    """The boolean mask of real tokens of a batch of this shape ([B, N] or [B, H, W]); None where nothing was given.

    Lengths are checked against the row and a mask without any real token is warned of where that costs no wait for a
    device: on values that lie on the CPU, outside of ``torch.compile`` and ``torch.export``.
    """
    given = [value is not None for value in (lengths, mask, key_padding_mask)].count(True)
    if given > 1:
        raise ValueError(f"{who}: lengths, mask and key_padding_mask say the same thing; give one of them")
    if lengths is not None:
        return _from_lengths(who, shape, device, lengths)
    if mask is not None:
        mask = _boolean(who, "mask", mask, shape)
        if _readable(mask) and mask.numel() and not mask.any():
            warnings.warn(
                f"{who}: mask has no real token, so all outputs are 0; it is True where a token is real. "
                "A mask that is True at padding, as torch.nn.MultiheadAttention takes it, is key_padding_mask=",
                stacklevel=3,
            )
        return mask
    if key_padding_mask is not None:
        return ~_boolean(who, "key_padding_mask", key_padding_mask, shape)
    return None


def _readable(values: Tensor) -> bool:
    """Whether values can be looked at now, at no cost: not on a device, in a trace or under ``torch.func``."""
    if values.device.type != "cpu" or torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    return type(values) is Tensor and torch._C._functorch.maybe_current_level() is None


def _boolean(who: str, name: str, mask: Tensor, shape: Sequence[int]) -> Tensor:
    if mask.dtype.is_floating_point or mask.dtype.is_complex or tuple(mask.shape) != tuple(shape):
        raise ValueError(
            f"{who}: {name} must be {list(shape)} of bool or of integers (0 or 1), but is {mask.dtype} "
            f"{list(mask.shape)}"
        )
    return mask if mask.dtype == torch.bool else mask != 0


def _from_lengths(who: str, shape: Sequence[int], device: torch.device, lengths: Lengths) -> Tensor:
    rows, tokens = shape
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths, device="cpu")
        if lengths.numel() == 0:
            lengths = lengths.long()
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool or tuple(lengths.shape) != (rows,):
        raise ValueError(
            f"{who}: lengths must be [{rows}] integers, one for each row, but are {lengths.dtype} {list(lengths.shape)}"
        )
    if _readable(lengths) and ((lengths < 0) | (lengths > tokens)).any():
        raise ValueError(f"{who}: lengths must be from 0 to the {tokens} tokens of a row, but are {lengths.tolist()}")
    return torch.arange(tokens, device=device) < lengths.to(device).unsqueeze(1)
