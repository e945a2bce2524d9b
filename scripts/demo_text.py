"""Makes a text from the source of this machine's Python standard library: nothing is downloaded.

Usage: demo_text.py FILE [BYTES]   (BYTES: how much, 4 million by default)

Modules come in the order of a hash of their names, so that the held-out end of the text is like the rest of it. The
same Python gives the same text.
"""

import hashlib
import sys
import sysconfig
from pathlib import Path

DEFAULT_BYTES = 4_000_000


def sources() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "idlelib", "turtledemo", "lib2to3"}
    names = [p for p in library.rglob("*.py") if not skipped.intersection(p.relative_to(library).parts)]
    return sorted(names, key=lambda p: hashlib.sha256(p.relative_to(library).as_posix().encode()).hexdigest())


def main() -> int:
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    target, wanted = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else DEFAULT_BYTES
    text = b""
    for path in sources():
        text += path.read_bytes()
        if len(text) >= wanted:
            break
    if not text:
        print("demo_text.py: this Python has no sources of its standard library", file=sys.stderr)
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text[:wanted])
    return 0


if __name__ == "__main__":
    sys.exit(main())
