"""Tells scikit-build-core which torch the wheel needs: the minor version of the one it is built with."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    major, minor, *_ = version("torch").split(".")
    return {"dependencies": [f"torch=={major}.{minor}.*"]}
