"""`make demo` on a scale of seconds, and its text."""

import json
import subprocess
import sys
from pathlib import Path

from program import ENVIRONMENT, PROGRAM, ROOT


def demo_text(path: Path, size: int) -> bytes:
    subprocess.run([sys.executable, ROOT / "scripts/demo_text.py", path, str(size)], check=True)
    return path.read_bytes()


def test_the_text_is_the_same_each_time_and_a_few_megabytes(tmp_path: Path) -> None:
    first = demo_text(tmp_path / "a", 3_000_000)
    assert len(first) == 3_000_000
    assert demo_text(tmp_path / "b", 3_000_000) == first
    assert demo_text(tmp_path / "c", 1000) == first[:1000]
    assert b"import" in first and b"\0" not in first


def test_it_trains_scores_and_compares_three_models(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts/demo.py", "--quick", "--program", PROGRAM, "--out", tmp_path]
    for number in ("1", "2"):  # a second run has a folder of its own
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        table = done.stdout.split("tokens/s   memory\n")[1].splitlines()[:3]
        assert [row[:18].strip() for row in table] == ["plain", "depthwise control", "ContextPool"]
        assert all(1 < float(row[30:].split()[0]) < 9 for row in table), table  # bits per character
        for model in ("tiny", "dw-tiny", "cp-tiny"):
            log = (tmp_path / number / model / "log.jsonl").read_text().splitlines()
            assert json.loads(log[-1])["step"] == 4
