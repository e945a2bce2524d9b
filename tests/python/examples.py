"""The examples printed in a page of documentation, and what they say they print."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def block(page: str, language: str) -> str:
    """The page's one block of that language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return text


def promised(code: str, comment: str) -> list[str]:
    """What the example says it prints, beside each line that prints."""
    lines = [line for line in code.splitlines() if line.lstrip().startswith(("print(", "std::cout"))]
    return [line.split(f" {comment} ", 1)[1].strip() for line in lines]


def run(command: list[str], cwd: Path) -> list[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()
