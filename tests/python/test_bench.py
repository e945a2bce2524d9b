"""The benchmarks run from the repository alone, and what they compare with computes the same."""

import importlib.util
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch

import contextpool
from program import ROOT, call, contextpool_says


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


def test_the_benchmark_of_mixers_runs_from_the_repository_alone() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    short = [sys.executable, "bench/short_convolution.py", "--quick", "--taps", "4", "--seconds", "0.01"]
    done = subprocess.run(short, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "| ours |" in done.stdout, done.stdout + done.stderr
    dynamic = [sys.executable, "bench/dynamic_convolution.py", "--quick", "--seconds", "0.01"]
    done = subprocess.run(dynamic, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "| ours |" in done.stdout, done.stdout + done.stderr


def table(said: str) -> dict[str, list[float]]:
    """The rows of the first table that is printed, by their names."""
    lines = said.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    rows = {}
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        name, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = [float(figure.removesuffix(" %")) for figure in figures if figure]
    return rows


STEP = ("bench", "step", "--device", "cpu", "--threads", "1", "--steps", "2")


def test_bench_step_times_a_model_beside_its_twin() -> None:
    said = contextpool_says(*STEP, "--model", "cp-tiny", "--length", 32, "--batch", 4, "--peak", 0.5, "--profile")
    assert "| | cp-tiny | tiny | more |" in said
    rows = table(said)
    ms, tokens = rows["ms a step"], rows["tokens a second"]
    for side in (0, 1):
        assert tokens[side] == pytest.approx(128 / ms[side] * 1e3, rel=0.02)
        assert rows["MFU, %"][side] == pytest.approx(rows["TFLOP/s"][side] / 0.5 * 100, abs=0.1)
    assert ms[2] == pytest.approx(100 * (ms[0] / ms[1] - 1), abs=2)
    # Three times the forward's operations, of which the table of models has the halves.
    macs = next(line for line in contextpool_says("models", "--length", 32).splitlines() if line.startswith("tiny "))
    expected = 3 * 2 * float(macs.split()[2].removesuffix("M")) * 1e6 * tokens[1]
    assert rows["TFLOP/s"][1] * 1e12 == pytest.approx(expected, rel=0.05)
    # Float32 weights, and twice as much of AdamW's.
    parameters = int(macs.split()[1])
    assert rows["MB of weights and optimizer"][1] == pytest.approx(12 * parameters / 1e6, abs=0.1)
    assert rows["MB more in a step"][0] > rows["MB more in a step"][1] > 4 * parameters / 1e6
    assert "cp-tiny, operators by their own time" in said and "| contextpool::pool1d |" in said.split("tiny, op")[1]
    assert "| matrix products |" in said and "| pooling |" not in said.split("\ntiny, operators")[1]


@pytest.mark.parametrize(
    ("model", "flags", "unit"),
    [
        ("cp-resnet-20", ["--batch", 2], "images"),
        ("cp-vit-tiny-patch4", ["--batch", 2, "--layers", 1], "images"),
        ("cp-nmt-tiny", ["--batch", 256, "--numbers", 400, "--layers", 1, "--decoder-layers", 1], "tokens"),
        ("transformer-6", ["--batch", 2, "--length", 16, "--layers", 1, "--bfloat16", "--accumulate", 2], "tokens"),
    ],
)
def test_bench_step_is_for_every_family(model: str, flags: list, unit: str) -> None:
    rows = table(contextpool_says(*STEP, "--model", model, *flags))
    assert rows[f"{unit} a second"][0] > 0 and rows["TFLOP/s"][0] > 0
    assert len(rows["ms a step"]) == (3 if model.startswith("cp-") else 1)


def test_bench_loader_counts_what_threads_load() -> None:
    said = contextpool_says("bench", "loader", "--model", "resnet-20", "--loaders", "1,2", "--seconds", 0.2)
    assert "images a second" in said
    rows = table(said)
    assert set(rows) == {"1", "2"} and all(figure > 0 for row in rows.values() for figure in row)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "expected step or loader"),
        (["steps"], 'not "steps"'),
        (["step", "--steps", 0], "--steps is 0, expected at least 1"),
        (["step", "--model", "cp-tin"], 'did you mean "cp-tiny"'),
        (["step", "--beside", "resnet-20"], "expected models of one family"),
        (["step", "--data", "no/such/file"], "no/such/file"),
        (["step", "--threads", 10**11], "--threads is 100000000000, expected 0 to 1024"),
        (["step", "--peak", "nan"], "--peak is nan, expected 0"),
        (["loader", "--loaders", "0"], "--loaders is 0, expected 1 to 256"),
        (["loader", "--loaders", "100000"], "--loaders is 100000, expected 1 to 256"),
        (["loader", "--seconds", "inf"], "--seconds is inf, expected more than 0, at most 3600"),
        (["loader", "--model", "resnet-50", "--data", "no/such/folder"], "no/such/folder"),
    ],
)
def test_bench_says_what_is_wrong_in_a_line(words: list, complaint: str) -> None:
    done = call("bench", *words)
    assert done.returncode in (1, 2) and complaint in done.stderr and done.stderr.count("\n") == 1, done.stderr
