"""Wrong input to operators and modules raises an error that names who refuses it, and never ends the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from pool1d_cases import devices


@pytest.mark.parametrize("device", devices())
def test_every_wrong_input_is_refused_by_name_in_a_process_of_its_own(device: str) -> None:
    program = Path(__file__).with_name("refusals.py")
    done = subprocess.run([sys.executable, program, device], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1:] == ["end"], done.stdout + done.stderr
    assert len(lines) > 40
    assert [line for line in lines[:-1] if not line.endswith(": refused")] == []
