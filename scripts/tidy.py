"""clang-tidy over every C++ file of build/compile_commands.json, in parallel; silence is success.

A file is looked at again only if something that it is made of has changed: the file, a header of this repository that
it includes, its compile command, .clang-tidy or the version of clang-tidy. What was clean is kept in build/tidy.
"""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CLEAN = BUILD / "tidy"
TIDY = ROOT / ".venv/bin/clang-tidy"
# Each file as the build compiles it, but for what clang does not know: gcc's OpenMP and gcc-only flags.
EXTRA = ("-fno-openmp", "-Wno-unknown-warning-option", "-Wno-ignored-optimization-argument")


def dependencies() -> dict[str, list[Path]]:
    """The files of this repository that each object is made of, from the last build."""
    text = subprocess.run(["ninja", "-C", BUILD, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[Path]] = {}
    for block in text.split("\n\n"):
        head, *lines = block.splitlines() or [""]
        paths = [(BUILD / line.strip()).resolve() for line in lines]
        found[head.split(":")[0]] = sorted(p for p in paths if ROOT in p.parents and ".venv" not in p.parts)
    return found


def keys(common: bytes) -> dict[str, str]:
    """A hash for each file: of all that it is made of, by every command that compiles it."""
    made_of, digests = dependencies(), {}
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        path, command = Path(entry["file"]), entry["command"]
        if path.suffix != ".cpp" or not any((ROOT / part) in path.parents for part in ("src", "tests")):
            continue
        digest = digests.setdefault(str(path), hashlib.sha256(common))
        digest.update(command.encode())
        words = shlex.split(command)
        for part in (path, *made_of.get(words[words.index("-o") + 1], [])):
            digest.update(str(part.relative_to(ROOT)).encode() + b"\0" + part.read_bytes())
    return {path: digest.hexdigest() for path, digest in digests.items()}


def look_at(path: str) -> str:
    """What clang-tidy has to say about a file; nothing if all is well."""
    arguments = [str(TIDY), "-quiet", "-p", str(BUILD), *(f"-extra-arg={flag}" for flag in EXTRA), path]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode == 0 and "warning:" not in done.stdout:
        return ""
    return done.stdout or done.stderr


def main() -> int:
    CLEAN.mkdir(exist_ok=True)
    common = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common += (ROOT / ".clang-tidy").read_bytes() + (ROOT / "requirements.txt").read_bytes()
    todo = {path: name for path, name in keys(common).items() if not (CLEAN / name).exists()}
    jobs = int(os.environ.get("JOBS") or os.cpu_count() or 1)
    failed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for name, text in zip(todo.values(), pool.map(look_at, todo)):
            if text:
                print(text, flush=True)
                failed += 1
            else:
                (CLEAN / name).touch()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
