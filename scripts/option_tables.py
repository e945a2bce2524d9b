#!/usr/bin/env python3
"""Writes every table of ContextPool's options from src/nn/context_pool_options.toml, so that the languages and the
documentation cannot differ. Tests compare the files with what this script makes of the table.
Usage: .venv/bin/python scripts/option_tables.py          writes the files
       .venv/bin/python scripts/option_tables.py --check  names those that would change, and fails
"""

import dataclasses
import re
import sys
import textwrap
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLE = "src/nn/context_pool_options.toml"
NOTICE = f"Written by scripts/option_tables.py from {TABLE}"
WIDTH = 120

Value = bool | int | float | str


@dataclasses.dataclass
class Option:
    name: str
    help: str
    words: dict[str, str] = dataclasses.field(default_factory=dict)
    default: Value = ""
    maps: Value | None = None
    only: str = ""
    set_by_model: bool = False

    def __post_init__(self) -> None:
        if self.words:
            self.default = next(iter(self.words))

    @property
    def literal(self) -> str:
        """The name of its type in Python, of an option with words."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    def of_module(self, dims: int) -> bool:
        return self.only != ("maps" if dims == 1 else "rows")

    def default_of(self, dims: int) -> Value:
        return self.default if dims == 1 or self.maps is None else self.maps


def read_options() -> list[Option]:
    table = tomllib.loads((ROOT / TABLE).read_text())
    return [Option(name, **fields) for name, fields in table.items()]


def in_full(o: Option) -> str:
    """Help, and that of its words."""
    return ". ".join([o.help, *(f'"{word}": {text}' for word, text in o.words.items())])


def comment(text: str, indent: str) -> str:
    return textwrap.fill(text.replace("`", ""), WIDTH, initial_indent=f"{indent}// ", subsequent_indent=f"{indent}// ")


def capitalised(text: str) -> str:
    """Formulas and names stay as they are."""
    return text[0].upper() + text[1:] if re.match(r"[a-z]{3}|a |of ", text) else text


def cpp_value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def cpp_fields(options: list[Option]) -> str:
    types = {bool: "bool", int: "int64_t", float: "double", str: "std::string"}
    fields = []
    for o in options:
        if not o.of_module(1):
            continue
        fields.append(comment(capitalised(in_full(o)) + ".", "  "))
        fields.append(f"  {types[type(o.default)]} {o.name} = {cpp_value(o.default)};")
    return "\n".join(fields)


def of_models(options: list[Option]) -> list[Option]:
    return [o for o in options if not o.set_by_model]


def flag_help(o: Option) -> str:
    """One line, with the names that a model's options have."""
    text = re.sub(r"`(size_range|reference_length|initial_sigma)`", r"pool_\1", o.help).replace("`", "")
    *first, last = list(o.words) or [""]
    return f"{text}: {', '.join(first)} or {last}" if o.words else text


def cpp_model_options(options: list[Option]) -> str:
    lines = []
    for o in of_models(options):
        call = f'  f("pool_{o.name}", pool.{o.name}, "{flag_help(o)}");'
        lines.append(call if len(call) <= WIDTH else f'  f("pool_{o.name}", pool.{o.name},\n    "{flag_help(o)}");')
    return "\n".join(lines)


def cpp_header(options: list[Option]) -> str:
    maps = "\n".join(f"    {o.name} = {cpp_value(o.maps)};" for o in options if o.maps is not None)
    stride = next(o for o in options if o.name == "stride")
    return f"""\
// {NOTICE}; do not edit.
//
// The options of ContextPool1d and ContextPool2d.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace contextpool::nn {{

struct ContextPoolOptions {{
{cpp_fields(options)}
}};

// With defaults for maps. Distances are those between pixels; a map cannot be causal.
struct ContextPool2dOptions : ContextPoolOptions {{
  ContextPool2dOptions(int64_t channels = 0) {{
    features = channels;
{maps}
  }}

{comment(capitalised(stride.help) + ". Target (ho, wo) sits on pixel (ho * stride[0], wo * stride[1]).", "  ")}
  std::array<int64_t, 2> stride{{{stride.default}, {stride.default}}};
}};

// Calls f(name, value, help) for each option that a model passes on, named pool_*; the model sets the others itself.
template <typename Options, typename F>
void for_each_pool_option(Options& pool, F f) {{
{cpp_model_options(options)}
}}

}}  // namespace contextpool::nn
"""


def cpp_checks(options: list[Option]) -> str:
    lines = []
    for o in options:
        if o.words:
            words = ", ".join(f'"{word}"' for word in o.words)
            lines.append(f'  check_word(who, "{o.name}", o.{o.name}, {{{words}}});')
    return "\n".join(lines)


def quoted(text: str) -> str:
    return text.replace("`", "``")


def annotation(o: Option) -> str:
    return o.literal if o.words else type(o.default).__name__


def python_value(value: Value) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def python_table(options: list[Option]) -> str:
    rows = [o for o in options if o.of_module(1)]
    literals = "\n".join(
        f"{o.literal} = Literal[{', '.join(python_value(word) for word in o.words)}]" for o in options if o.words
    )
    words = "\n".join(f'    "{o.name}": get_args({o.literal}),' for o in options if o.words)
    fields = "\n".join(f"    {o.name}: {annotation(o)}" for o in rows)
    model_fields = "\n".join(
        f"    pool_{o.name}: {annotation(o)} = {python_value(o.default)}" for o in of_models(options)
    )
    return f'''\
"""The options of ContextPool1d and ContextPool2d.

{NOTICE}; do not edit."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

{literals}

WORDS: dict[str, tuple[str, ...]] = {{
{words}
}}


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """What both modules have."""

{fields}


@dataclass(kw_only=True)
class PoolOptions:
    """Those that a model passes on; it sets the others itself."""

{model_fields}

    def pool(self) -> dict[str, Any]:
        """The options of ContextPool, by the names it knows."""
        return {{field.name[len("pool_") :]: getattr(self, field.name) for field in fields(PoolOptions)}}
'''


def docstring_arguments(options: list[Option]) -> str:
    lines = []
    for o in options:
        if not o.of_module(1):
            continue
        text = quoted(f"{o.name}: {in_full(o)}.")
        lines.append(textwrap.fill(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12))
    return "\n".join(lines)


def signature(options: list[Option], dims: int) -> str:
    own = [o for o in options if o.of_module(dims) and o.name != "features"]
    lines = ["    def __init__(", "        self,", "        features: int,", "        *,"]
    for o in own:
        kind = "int | tuple[int, int]" if o.name == "stride" else annotation(o)
        lines.append(f"        {o.name}: {kind} = {python_value(o.default_of(dims))},")
    lines += ["        device: Device = None,", "        dtype: torch.dtype | None = None,", "    ) -> None:"]
    given = ", ".join(
        f"{o.name}={o.name if o.of_module(dims) else python_value(o.default)}" for o in options if o.of_module(1)
    )
    lines += ["        options = Options(", f'            who="ContextPool{dims}d",']
    lines += textwrap.wrap(given + ",", WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 12)
    return "\n".join([*lines, "        )"])


def in_cell(text: str) -> str:
    return text.replace("|", r"\|")


def markdown(options: list[Option]) -> str:
    lines = ["| option | default | what it is |", "|---|---|---|"]
    for o in options:
        default = f"`{o.default}`" if o.words else "no" if o.default is False else f"{o.default:g}"
        default += f"; maps {o.maps:g}" if o.maps is not None else f" ({o.only} only)" if o.only else ""
        lines.append(f"| `{o.name}` | {'' if o.name == 'features' else default} | {in_cell(o.help)} |")
        lines += [f"| | `{word}` | {in_cell(text)} |" for word, text in o.words.items()]
    return "\n".join(lines)


def with_regions(path: str, regions: dict[str, str]) -> str:
    """The file with new text between each line "option_tables.py: NAME" and the next "option_tables.py: end"."""
    text = (ROOT / path).read_text()
    for name, lines in regions.items():
        between = rf"(?s)(option_tables\.py: {name}\b[^\n]*\n).*?(\n[^\n]*option_tables\.py: end)"
        if name == "arguments":  # of a docstring, where a mark would be seen by users
            between = r"(?s)(class ContextPool1d\(.*?\n    Args:\n).*?(\n        device, dtype:)"
        text, count = re.subn(between, lambda m, lines=lines: m[1] + lines + m[2], text)
        if count != 1:
            sys.exit(f"{path}: expected one place for {name}, found {count}")
    return text


def files() -> dict[str, str]:
    options = read_options()
    python = "python/contextpool/nn/context_pool.py"
    regions = {
        "src/nn/context_pool_options.cpp": {"words": cpp_checks(options)},
        "docs/module.md": {"options": markdown(options)},
        python: {
            "arguments": docstring_arguments(options),
            "rows": signature(options, 1),
            "maps": signature(options, 2),
        },
    }
    return {
        "include/contextpool/nn/context_pool_options.h": cpp_header(options),
        "python/contextpool/nn/_option_table.py": python_table(options),
        **{path: with_regions(path, regions) for path, regions in regions.items()},
    }


def main() -> int:
    changed = {
        path: text
        for path, text in files().items()
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text
    }
    if "--check" in sys.argv[1:]:
        if changed:
            print(f"{', '.join(changed)}: not what {TABLE} says; run scripts/option_tables.py", file=sys.stderr)
        return 1 if changed else 0
    for path, text in changed.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
