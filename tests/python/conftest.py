import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 kB of Python source."""
    path = tmp_path_factory.mktemp("text") / "text"
    subprocess.run([sys.executable, ROOT / "scripts/demo_text.py", path, "200000"], check=True)
    return path
