"""Writes the files that fuzzing starts from: small good ones of each kind, and each with something wrong."""

import gzip
import io
import json
import random
import struct
import sys
import tarfile
import zlib
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


def safetensors() -> dict[str, bytes]:
    files = {}
    for name, (header, size) in SEEDS.items():
        text = json.dumps(header, ensure_ascii=False).encode()
        files[name] = struct.pack("<Q", len(text)) + text + bytes(size)
    return files


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def pngs() -> dict[str, bytes]:
    """Every colour type and depth; interlaced ones have bytes enough for their passes."""
    files = {}
    kinds = [(0, d) for d in (1, 2, 4, 8, 16)] + [(2, 8), (2, 16), (3, 4), (3, 8), (4, 8), (4, 16), (6, 8), (6, 16)]
    for colour, depth in kinds:
        for interlace in (0, 1):
            channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
            row = (9 * channels * depth + 7) // 8 + 1
            head = chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 5, depth, colour, 0, 0, interlace))
            extra = chunk(b"PLTE", bytes(range(48))) if colour == 3 else b""
            extra += chunk(b"eXIf", b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0")
            data = chunk(b"IDAT", zlib.compress(bytes(row * 5 * (2 if interlace else 1))))
            files[f"{colour}-{depth}-{interlace}"] = b"\x89PNG\r\n\x1a\n" + head + extra + data + chunk(b"IEND", b"")
    return files


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def huffman(kind: int, table: int, lengths: list[int]) -> bytes:
    """Codes of the given lengths (counts by length) for the symbols 0, 1, 2, ..."""
    counts = lengths + [0] * (16 - len(lengths))
    return segment(0xC4, bytes([kind << 4 | table, *counts, *range(sum(counts))]))


def jpegs() -> dict[str, bytes]:
    """Sequential ones of grey, colour (three subsamplings) and four inks; the coded data are any bits."""
    files = {}
    exif = segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0")
    adobe = segment(0xEE, b"Adobe\0\x64\0\0\0\0\2")
    tables = segment(0xDB, bytes([0] + [1] * 64)) + huffman(0, 0, [0, 3]) + huffman(1, 0, [1, 1, 1])
    samplings = {"grey": [0x11], "444": [0x11] * 3, "422": [0x21, 0x11, 0x11], "420": [0x22, 0x11, 0x11], "inks": [0x11] * 4}
    rng = random.Random(1)
    for name, sampling in samplings.items():
        for start in (0xC0, 0xC2):
            parts = b"".join(bytes([k + 1, s, 0]) for k, s in enumerate(sampling))
            frame = segment(start, struct.pack(">BHHB", 8, 19, 21, len(sampling)) + parts)
            scan = bytes([len(sampling)]) + b"".join(bytes([k + 1, 0]) for k in range(len(sampling)))
            scan += bytes([0, 0 if start == 0xC2 else 63, 0])
            data = bytes(b & 0x6D for b in rng.randbytes(300))  # no 0xff
            head = b"\xff\xd8" + exif + (adobe if name == "inks" else b"") + tables + frame
            files[f"{name}-{start:x}"] = head + segment(0xDA, scan) + data + b"\xff\xd9"
    return files


def archives() -> dict[str, bytes]:
    files = {}
    for name, kind in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
            names = ["cat/a.jpg", "cat/a.cls"] + ([] if name == "ustar" else ["dog/" + "n" * 130 + "é.png"])
            for path in names:
                entry = tarfile.TarInfo(path)
                entry.size = 7
                tar.addfile(entry, io.BytesIO(b"1234567"))
        files[name] = out.getvalue()[:5120]
    files["cifar10"] = (b"\x09" + bytes(3072)) * 2
    files["cifar100"] = (b"\x13\x63" + bytes(3072)) * 2
    return files


def main() -> None:
    kinds = {"safetensors": safetensors(), "text": TEXTS, "png": pngs(), "jpeg": jpegs(), "archives": archives()}
    for kind, files in kinds.items():
        folder = Path(sys.argv[1]) / kind
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
