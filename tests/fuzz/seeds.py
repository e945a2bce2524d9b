"""Writes the files that fuzzing starts from: small good ones of each kind, and each with something wrong."""

import gzip
import json
import struct
import sys
from pathlib import Path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "F64": 8, "I64": 8}
SEEDS: dict[str, tuple[object, int]] = {
    "empty": ({}, 0),
    "metadata": ({"__metadata__": {"format": "pt", "é": "\n"}}, 0),
    "two": ({"a": entry("F32", [2, 1], 0, 8), "b": entry("U8", [3], 8, 11)}, 11),
    "zero": ({"a": entry("F32", [0, 5], 0, 0), "b": entry("I64", [], 0, 8)}, 8),
    "gap": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [1], 3, 4)}, 4),
    "overlap": ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 3),
    "large": ({"a": entry("F64", [2**32, 2**31], 0, 8)}, 8),
    "negative": ({"a": entry("F64", [-1, -8], 0, 8)}, 8),
    "deep": ({"a": {"shape": [[[[]]]]}}, 0),
    **{dtype: ({"w": entry(dtype, [2], 0, 2 * size)}, 2 * size) for dtype, size in SIZES.items()},
}


TEXTS = {
    "plain": b"a\tA\nb\tB\n",
    "returns": b"\xef\xbb\xbfa\tA\r\n\r\n\xc3\xa4\t\xf0\x9f\x98\x80",
    "files": b"a\n\nc\n\x01A\nB\nC",
    "invalid": b"\xff\tx\ny\t\xed\xa0\x80\nok\tok\n",
    "long": b"x" * 60 + b"\ty\nz\tz\n",
    "packed": gzip.compress(b"a\tA\nb\tB\n", mtime=0),
    "members": gzip.compress(b"a\tA\nb", mtime=0) + gzip.compress(b"\tB\n", mtime=0) + bytes(8),
    "cut": gzip.compress(b"a\tA\n" * 50, mtime=0)[:-9],
    "wide": "a\tb\n".encode("utf-16"),
}


def main() -> None:
    folder = Path(sys.argv[1])
    for kind in ("safetensors", "text"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for name, (header, size) in SEEDS.items():
        text = json.dumps(header, ensure_ascii=False).encode()
        (folder / "safetensors" / name).write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    for name, content in TEXTS.items():
        (folder / "text" / name).write_bytes(content)


if __name__ == "__main__":
    main()
