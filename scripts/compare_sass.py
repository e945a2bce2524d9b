"""Whether the CUDA kernels of the working tree compile to the same machine code as those of a revision.

    scripts/compare_sass.py [--revision HEAD] [--arch sm_80 --arch sm_90a] [FILE.cu ...]

Compiles every source below src/kernels/cuda (or those named, in both trees) with nvcc and compares the instructions of
each kernel. A kernel that differs is listed with its instructions, registers and spills before and after, and with the
number of instructions at which it differs: in operands alone (registers, constants' addresses), or else in opcodes
too. Exit status 1 if one differs in opcodes. Kernels are matched by their code, wherever they stand and whatever they
are called, then by name. Cubins are kept below build/sass, by the text they were made of.
"""

import argparse
import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "sass"
FLAGS = ["-O3", "-DNDEBUG", "-std=c++17", "-cubin", "-Xptxas=-v"]
INSTRUCTION_BYTES = 16
NOP = 0x918

Kernel = tuple[bytes, str]  # its code, and a line on stack, spills and registers


def text_of(tree: Path, source: Path, seen: set[Path]) -> str:
    """A source and the files of ours that it includes, each once."""
    if source in seen or not (tree / source).exists():
        return ""
    seen.add(source)
    text = (tree / source).read_text()
    included = re.findall(r'#include "(.+)"', text)
    return text + "".join(text_of(tree, Path("src") / name, seen) for name in included)


def compile_to_cubin(tree: Path, source: Path, arch: str) -> Path:
    text = f"{arch} {FLAGS} {source}\n" + text_of(tree, source, set())
    cubin = CACHE / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.cubin"
    if not cubin.exists():
        part = cubin.with_suffix(".part")
        command = ["nvcc", *FLAGS, f"-arch={arch}", f"-I{tree / 'src'}", str(tree / source), "-o", str(part)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        cubin.with_suffix(".log").write_text(done.stdout + done.stderr)
        part.rename(cubin)
    return cubin


def sections(cubin: bytes) -> dict[str, bytes]:
    """The sections of a 64-bit ELF file."""
    (offset,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + k * size) for k in range(count)]
    strings = headers[names][4]
    found = {}
    for name, kind, _, _, start, length in headers:
        end = cubin.index(b"\0", strings + name)
        found[cubin[strings + name : end].decode()] = cubin[start : start + length] if kind != 8 else b""
    return found


def kernels(cubin: Path) -> dict[str, Kernel]:
    """By name."""
    log = cubin.with_suffix(".log").read_text()
    entry = r"Compiling entry function '(\S+)' for.*\n.*Function properties.*\n\s*(.*)\n.*info\s*: Used (.*)"
    usage = {name: f"{spills}, {used}" for name, spills, used in re.findall(entry, log)}
    found = {}
    for section, data in sections(cubin.read_bytes()).items():
        if section.startswith(".text."):
            name = section.removeprefix(".text.")
            found[name] = (data, usage.get(name, ""))
    return found


def plain(name: str) -> str:
    """A kernel's name for reading, without what nvcc puts in for an anonymous namespace."""
    text = subprocess.run(["c++filt", name], check=True, capture_output=True, text=True).stdout.strip()
    text = re.sub(r"_GLOBAL__N__\w+::|<unnamed>::|\(anonymous namespace\)::|_INTERNAL_\w+::", "", text)
    return re.sub(r"contextpool::cuda::|^void ", "", text).split("(")[0]


def instructions(kernel: Kernel) -> list[bytes]:
    """Without those that only fill up the end."""
    code = kernel[0]
    every = [code[k : k + INSTRUCTION_BYTES] for k in range(0, len(code), INSTRUCTION_BYTES)]
    return [i for i in every if opcode(i) != NOP]


def opcode(instruction: bytes) -> int:
    return int.from_bytes(instruction[:2], "little") & 0xFFF


def describe(kernel: Kernel) -> str:
    return f"{len(instructions(kernel))} instructions, {kernel[1]}"


def difference(before: Kernel, after: Kernel) -> tuple[bool, str]:
    """Whether only operands differ, and in words."""
    one, other = instructions(before), instructions(after)
    if [opcode(i) for i in one] != [opcode(i) for i in other] or before[1] != after[1]:
        return False, f"before {describe(before)}\n    after  {describe(after)}"
    count = sum(a != b for a, b in zip(one, other))
    return True, f"the same opcodes; other operands in {count} of {describe(after)}"


def compare(before: dict[str, Kernel], after: dict[str, Kernel]) -> tuple[int, int, list[str]]:
    """How many kernels are the same, how many but for operands, and a line for each that is not the same."""
    same, left = 0, dict(after)
    changed = []
    for name, kernel in before.items():
        twin = name if left.get(name) == kernel else next((n for n, k in left.items() if k == kernel), None)
        if twin is None:
            changed.append(name)
        else:
            del left[twin]
            same += 1
    operands, lines = 0, []
    for name in changed:
        twin = next((n for n in left if plain(n) == plain(name)), None)
        alike, text = difference(before[name], left.pop(twin)) if twin is not None else (False, "gone")
        operands += alike
        lines.append(f"{plain(name)}\n    {text}")
    lines += [f"{plain(name)}\n    new: {describe(kernel)}" for name, kernel in left.items()]
    return same, operands, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", default="HEAD")
    parser.add_argument("--arch", action="append")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", options.revision], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    old = CACHE / "tree" / commit
    if not old.exists():
        old.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", commit, "src/kernels"], check=True, capture_output=True, cwd=ROOT)
        subprocess.run(["tar", "-x", "-C", old], input=archive.stdout, check=True)
    total, alike, different = 0, 0, 0
    for arch in options.arch or ["sm_80", "sm_90a"]:
        found: list[dict[str, Kernel]] = []
        for tree in (old, ROOT):
            paths = sorted(p.relative_to(tree) for p in (tree / "src/kernels/cuda").rglob("*.cu"))
            wanted = [p for p in paths if not options.files or any(p.match(str(f)) for f in options.files)]
            found.append({})
            for path in wanted:
                for name, kernel in kernels(compile_to_cubin(tree, path, arch)).items():
                    found[-1][name] = kernel
        same, operands, lines = compare(*found)
        total += same
        alike += operands
        different += len(lines) - operands
        for line in lines:
            print(f"{arch} {line}", flush=True)
    print(f"{total} kernels have the same machine code, {alike} the same but for operands, {different} other code")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
