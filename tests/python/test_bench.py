"""The benchmarks run from the repository alone, and what they compare with computes the same."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import contextpool
from program import PROGRAM, ROOT


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", ROOT / "bench/peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("causal", [False, True])
def test_peer_of_pool1d_is_the_same_function(peers: ModuleType, causal: bool) -> None:
    x, log_weight, sigma = peers.rows(2, 50, 4)
    for targets in (50, 3):  # the last ones
        mine = contextpool.pool1d(x, log_weight, sigma[:, -targets:], causal)
        torch.testing.assert_close(peers.pool1d(x, log_weight, sigma[:, -targets:], causal), mine)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels_last", [False, True])
def test_peer_of_pool2d_is_the_same_function(peers: ModuleType, stride: int, channels_last: bool) -> None:
    tensors = peers.maps(2, 4, 9, stride, channels_last=channels_last)
    mine = contextpool.pool2d(*tensors, (stride, stride))
    torch.testing.assert_close(peers.pool2d(*tensors, stride), mine, check_stride=False)


@pytest.mark.parametrize(
    "command",
    [["bench/pool1d.py", "--quick", "--lengths", "32", "--long-lengths", "256"], ["bench/pool2d.py", "--quick"]],
)
def test_benchmark_runs_from_the_repository_alone(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    # One that hangs is aborted, and then says where it was.
    watched = ["timeout", "-s", "ABRT", "-k", "9", "150", sys.executable, "-X", "faulthandler", *command]
    done = subprocess.run(watched, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faster" in done.stdout and "| memory / size of x |" in done.stdout


def test_mixers_benchmarks_run_from_the_repository_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    short = [sys.executable, "bench/short_convolution.py", "--quick", "--taps", "4", "--seconds", "0.01"]
    done = subprocess.run(short, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "| ours |" in done.stdout, done.stdout + done.stderr
    few = ["--data", "recall", "--forms", "plain", "canon", "--seeds", "1", "--steps", "2", "--runs", str(tmp_path)]
    command = [sys.executable, "bench/mixers.py", *few, "--program", str(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "| canon at A, C | 2 |" in done.stdout, done.stdout + done.stderr
