#!/usr/bin/env python3
"""Writes src/eval/unicode_tables.h: what BLEU's tokenizers and lower-casing know of Unicode.

The categories P, S and N are those of the package `regex`, because sacreBLEU's tokenizer "intl" asks that package; lower
case, and the letters that decide how a capital sigma is lower-cased, are those of this Python's str.lower().
Usage: .venv/bin/python scripts/unicode_tables.py
"""

import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import regex

OUTPUT = Path(__file__).resolve().parents[1] / "src/eval/unicode_tables.h"
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]

# The newest of these that the package knows says its version of Unicode.
VERSIONS = {"14.0": "\u20c0", "15.0": "\U00011f43", "15.1": "\u2ffc", "16.0": "\U0001fae9", "17.0": "\u20c1"}


def ranges(inside: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """First and last of each run of code points; surrogates, which no text has, do not break one."""
    first = last = None
    for code in CODES:
        if inside(chr(code)):
            if first is None:
                first = code
            last = code
        elif first is not None:
            yield first, last
            first = None
    if first is not None:
        yield first, last


def category(letter: str) -> list[tuple[int, int]]:
    pattern = regex.compile(rf"\p{{{letter}}}")
    return list(ranges(lambda c: pattern.match(c) is not None))


def lower_runs() -> list[tuple[int, int, int, int]]:
    """first, last, step, difference: first, first + step, ... last are lower-cased by adding the difference."""
    pairs = [(code, ord(chr(code).lower())) for code in CODES if len(chr(code).lower()) == 1]
    runs: list[tuple[int, int, int, int]] = []
    for code, low in pairs:
        if code == low:
            continue
        if runs:
            first, last, step, difference = runs[-1]
            gap = code - last
            if low - code == difference and gap in (1, 2) and (first == last or gap == step):
                runs[-1] = (first, code, gap, difference)
                continue
        runs.append((code, code, 1, low - code))
    return runs


# A sigma is final after a cased letter with nothing but ignorable characters between, and not before one.
def cased(c: str) -> bool:
    return (c + "Σ").lower().endswith("ς")


def ignorable(c: str) -> bool:
    return ("A" + c + "Σ").lower().endswith("ς") and not cased(c)


def rows(name: str, kind: str, items: list[tuple[int, ...]]) -> str:
    cells = ["{" + ", ".join(f"0x{n:x}" if n >= 0 else f"-0x{-n:x}" for n in item) + "}," for item in items]
    lines, line = [], "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 120:
            lines.append(line)
            line = "   "
        line += " " + cell
    return f"constexpr {kind} {name}[] = {{\n" + "\n".join([*lines, line]) + "\n};\n"


def main() -> None:
    of_regex = max((v for v, c in VERSIONS.items() if regex.match(r"[\p{S}\p{P}\p{N}]", c)), key=float)
    several = [code for code in CODES if len(chr(code).lower()) > 1]
    assert several == [0x130], "only the dotted capital I becomes two characters; unicode.cpp says so too"
    spaces = list(ranges(str.isspace))
    text = f"""// Written by scripts/unicode_tables.py; do not edit.
// Categories: the package regex {regex.__version__}, Unicode {of_regex}. Letters and spaces: Unicode {unicodedata.unidata_version}.
#pragma once

#include <cstdint>

namespace contextpool::eval::unicode {{

struct Range {{
  char32_t first, last;
}};
struct LowerRun {{  // first, first + step, ... last: add the difference
  char32_t first, last;
  std::uint32_t step;
  std::int32_t difference;
}};

// clang-format off
{rows("kPunctuation", "Range", category("P"))}
{rows("kSymbol", "Range", category("S"))}
{rows("kNumber", "Range", category("N"))}
{rows("kSpace", "Range", spaces)}
{rows("kCased", "Range", list(ranges(cased)))}
{rows("kCaseIgnorable", "Range", list(ranges(ignorable)))}
{rows("kLower", "LowerRun", lower_runs())}// clang-format on

}}  // namespace contextpool::eval::unicode
"""
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
