"""Options of models by name, as a checkpoint keeps them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..nn._options import did_you_mean


def check_options(cls: type, options: Mapping[str, Any], who: str) -> None:
    """ValueError at the first that ``cls``, a dataclass, does not have, or that is of another type than its default.
    ``who`` opens the message."""
    types = {field.name: type(field.default) for field in dataclasses.fields(cls)}
    for name, value in options.items():
        if name not in types:
            raise ValueError(f'{who}: unknown option "{name}"{did_you_mean(name, types)}')
        expected = (int, float) if types[name] is float else types[name]
        if not isinstance(value, expected) or (isinstance(value, bool) and types[name] is not bool):
            raise ValueError(f"{who}: {name} must be of type {types[name].__name__}, but is {value!r}")
