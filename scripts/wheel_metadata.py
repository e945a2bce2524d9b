"""Tells scikit-build-core what the wheel needs: torch of the minor version it is built with, and safetensors, which
contextpool.models reads checkpoints with."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, list[str]]:
    major, minor, *_ = version("torch").split(".")
    return {"dependencies": [f"torch=={major}.{minor}.*", "safetensors>=0.4"]}
