"""Finds, verifies and reads the file of a trained model: sizes and checksums as a checkpoint's MANIFEST.json lists them.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ._crc32c import crc32c_of_file

_FAMILY = "contextpool.family"  # keys of a model file's metadata: which class of model it is of,
_OPTIONS = "contextpool.model"  # and its options
_MANIFEST = "MANIFEST.json"
_MODELS = ("ema.safetensors", "model.safetensors")  # best first: the average of the weights, if kept
_LARGEST = 65536  # bytes of a manifest; it has a few hundred


def _opened(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(file), "pt")
    except SafetensorError as error:
        raise ValueError(f"{file}: not a safetensors file: {error}") from error


def read_model(path: Path, what: str) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """The file meant by a path (:func:`model_file`), and the options and weights in it. ``what`` is the family of model
    it must be of, in words; files of version 0.1.0 do not say. Needs the package ``safetensors``."""
    file = model_file(path)
    with _opened(file) as opened:
        metadata = opened.metadata() or {}
        if _OPTIONS not in metadata:
            raise ValueError(f"{file}: not a checkpoint of a {what}: no {_OPTIONS} in its metadata")
        family = metadata.get(_FAMILY, what).replace("_", " ")
        if family != what:
            raise ValueError(f"{file}: not a checkpoint of a {what}, but of a {family}")
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no dict)
    options = json.loads(metadata[_OPTIONS])
    if not isinstance(options, dict):
        raise ValueError(f"{file}: the model's options are not a JSON object")
    return file, options, weights


def family_of(path: Path) -> str:
    """The family of the model meant by a path, in words; a file of version 0.1.0, which does not say, has a language
    model."""
    file = model_file(path)
    with _opened(file) as opened:
        metadata = opened.metadata() or {}
    if _OPTIONS not in metadata:
        raise ValueError(f"{file}: not a model of contextpool: no {_OPTIONS} in its metadata")
    return str(metadata.get(_FAMILY, "language_model")).replace("_", " ")


def load_weights(model: nn.Module, weights: dict[str, Tensor], file: Path) -> None:
    """ValueError where the names or shapes are not those of the model."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{file}: its tensors are not those of its own model: {error}") from error


class Damaged(ValueError):
    """A checkpoint that is not what its manifest says."""


def model_file(path: Path) -> Path:
    """The file meant by a path to a file, a checkpoint's folder or a run folder, verified where it has a manifest.

    Of a run folder, that of the newest checkpoint that passes; those skipped are named in a warning.
    """
    if path.is_file():
        if (path.parent / _MANIFEST).is_file():
            _verify(path.parent, path.name)
        return path
    if (path / _MANIFEST).is_file():
        return _verified(path)
    files = [path / name for name in _MODELS if (path / name).is_file()]
    if files:
        return files[0]
    folders = {int(p.name[5:]): p for p in (path / "checkpoints").glob("step-*") if p.name[5:].isdigit()}
    skipped = []
    for step in sorted(folders, reverse=True):
        try:
            file = _verified(folders[step], step)
        except Damaged as error:
            skipped.append(str(error))
            continue
        if skipped:
            warnings.warn(f"{path}: loaded step {step}; skipped: {'; '.join(skipped)}", stacklevel=4)
        return file
    if skipped:
        raise Damaged(f"{path}: no checkpoint passes verification: {'; '.join(skipped)}")
    raise FileNotFoundError(f"{path}: no {_MODELS[1]} and no checkpoints/step-N/ with a {_MANIFEST} in it")


def _verified(folder: Path, step: int | None = None) -> Path:
    """The model's file in a checkpoint: every listed file has its size, and this one its checksum."""
    manifest = _read_manifest(folder)
    if step is not None and manifest["step"] != step:
        raise Damaged(f"{folder}: {_MANIFEST} is of step {manifest['step']}")
    for name, listed in manifest["files"].items():
        _check_size(folder / name, listed["size"])
    name = next((name for name in _MODELS if name in manifest["files"]), None)
    if name is None:
        raise Damaged(f"{folder / _MODELS[1]}: not listed in {_MANIFEST}")
    return _verify(folder, name, manifest)


def _verify(folder: Path, name: str, manifest: dict[str, Any] | None = None) -> Path:
    file = folder / name
    listed = (manifest or _read_manifest(folder))["files"].get(name)
    if listed is None:
        raise Damaged(f"{file}: not listed in {_MANIFEST}")
    _check_size(file, listed["size"])
    found = f"{crc32c_of_file(file):08x}"
    if found != listed["crc32c"]:
        raise Damaged(f"{file}: damaged, its checksum is {found}, {_MANIFEST} says {listed['crc32c']}")
    return file


def _check_size(file: Path, expected: int) -> None:
    if not file.is_file():
        raise Damaged(f"{file}: missing, though {_MANIFEST} lists it")
    size = file.stat().st_size
    if size != expected:
        raise Damaged(f"{file}: has {size} bytes, {_MANIFEST} says {expected}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Strictly: it must be, byte for byte, what is written for its values, so that no change to it passes."""
    file = folder / _MANIFEST
    fail = Damaged(f"{file}: not a manifest of a checkpoint, or a damaged one")
    try:
        text = file.read_bytes()
        if len(text) > _LARGEST:
            raise fail
        json_of = json.loads(text)
        files = {
            str(name): {"size": int(listed["size"]), "crc32c": f"{int(listed['crc32c'], 16):08x}"}
            for name, listed in json_of["files"].items()
        }
        manifest = {"format": 1, "step": int(json_of["step"]), "files": files}
    except FileNotFoundError as error:
        raise Damaged(f"{file}: missing") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise fail from error
    if json.dumps(manifest, indent=2).encode() + b"\n" != text or any("/" in name for name in files):
        raise fail
    return manifest
