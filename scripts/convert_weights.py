#!/usr/bin/env python3
"""Turns a .pth file of weights into safetensors, which the program reads: scripts/convert_weights.py IN.pth OUT.safetensors

A .pth is a pickle, which can run any code when it is read: it is read here with weights_only=True, which refuses
everything but tensors and plain values. The names of the tensors stay; models know those of timm, torchvision,
Microsoft's Swin and DeiT. A file that keeps its weights under "model", "state_dict" or "model_state_dict" beside other
things is understood; "model_ema" and others are asked for with --key.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

KEYS = ("model", "state_dict", "model_state_dict")


def tensors_of(content: Any, key: str | None) -> dict[str, torch.Tensor]:
    """The state_dict in what a .pth holds."""
    if not isinstance(content, Mapping):
        raise ValueError(f"holds a {type(content).__name__}, not tensors by name")
    if key is not None and key not in content:
        raise ValueError(f"has no {key!r}; it has {', '.join(map(str, list(content)[:8]))}")
    for name in (key,) if key is not None else KEYS:
        if isinstance(content.get(name), Mapping):
            content = content[name]
            break
    tensors = {str(name): value for name, value in content.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ValueError(f"has no tensors by name; it has {', '.join(map(str, list(content)[:8]))}")
    return tensors


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--key", help="where in the file the weights are, if not at one of the usual places")
    options = parser.parse_args(arguments)
    try:
        content = torch.load(options.input, map_location="cpu", weights_only=True)
        # Copies: tensors that share memory are refused by safetensors.
        tensors = {name: value.contiguous().clone() for name, value in tensors_of(content, options.key).items()}
    except Exception as error:  # of torch.load: of many kinds
        print(f"convert_weights: {options.input}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    save_file(tensors, options.output, {"format": "pt"})
    print(f"{options.output}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} numbers")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
