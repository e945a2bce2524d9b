"""The program of the build tree that the package comes from, and small runs of it."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import contextpool

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(contextpool.__file__).parents[2] / "bin" / "contextpool"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

# A model that takes milliseconds a step.
SMALL = ["--layers", "1", "--features", "16", "--heads", "2", "--feedforward", "32", "--pool-hidden", "8"]
SHORT = ["--length", "32", "--batch", "2", "--device", "cpu", "--eval-tokens", "200"]


def call(*arguments: object, **environment: str) -> subprocess.CompletedProcess:
    command = [str(PROGRAM), *map(str, arguments)]
    variables = {**ENVIRONMENT, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, errors="replace")


def contextpool_says(*arguments: object) -> str:
    done = call(*arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start(*arguments: object) -> subprocess.Popen:
    """Starts the program in the background, with no signal ignored: nohup and a shell's & ignore some."""
    command = ["env", "--default-signal", str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)


def on_terminal(*arguments: object, columns: int = 80) -> tuple[int, str]:
    """The exit status, and all that the program writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [str(PROGRAM), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # how Linux says that the other side was closed
        pass
    os.close(ours)
    return process.wait(), said.decode(errors="replace")


def log(run: Path) -> list[dict]:
    """What the log says, but for what depends on the clock."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert all(line.pop("time") for line in lines)
    return lines


def checkpoint(run: Path, step: int) -> dict[str, bytes]:
    folder = run / "checkpoints" / f"step-{step}"
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "MANIFEST.json"}


def assert_same_run(a: Path, b: Path, step: int) -> None:
    first, second = checkpoint(a, step), checkpoint(b, step)
    assert first.keys() == second.keys() >= {"model.safetensors", "optimizer.safetensors", "state.json"}
    for name in first:
        assert first[name] == second[name], name
    assert log(a) == log(b)
