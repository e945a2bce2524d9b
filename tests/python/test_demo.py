"""The text of `make demo`, and its table, on a scale of seconds."""

import subprocess
import sys
from pathlib import Path

from program import ROOT


def demo_text(path: Path, size: int) -> bytes:
    subprocess.run([sys.executable, ROOT / "scripts/demo_text.py", path, str(size)], check=True)
    return path.read_bytes()


def test_the_text_is_the_same_each_time_and_a_few_megabytes(tmp_path: Path) -> None:
    first = demo_text(tmp_path / "a", 3_000_000)
    assert len(first) == 3_000_000
    assert demo_text(tmp_path / "b", 3_000_000) == first
    assert demo_text(tmp_path / "c", 1000) == first[:1000]
    assert b"import" in first and b"\0" not in first
