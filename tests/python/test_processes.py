"""Several processes that train one model: torchrun starts the program twice, which talks to itself through Gloo."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from program import ENVIRONMENT, PROGRAM, SMALL, call, checkpoint, contextpool_says, log

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
ALONE = {"GLOO_SOCKET_IFNAME": "lo"}
SHORT = ["--length", 32, "--device", "cpu", "--eval-tokens", 200, "--checkpoint-every", 3]
SIX = ["--steps", 6, "--batch", 8]  # (a list, given twice, would be two stages)
PATIENCE = 60  # seconds until a test gives up on a job
AGREE = 1e-5  # of losses in float32


def command(arguments: tuple, processes: int, options: tuple = ()) -> list[str]:
    # After "--", since torchrun takes the program's --run for an abbreviation of its own --run-path.
    return [*TORCHRUN, f"--nproc-per-node={processes}", *options, "--", str(PROGRAM), "train", *map(str, arguments)]


def start(*arguments: object, processes: int = 2, options: tuple = ()) -> subprocess.Popen:
    environment = {**ENVIRONMENT, **ALONE}
    return subprocess.Popen(
        command(arguments, processes, options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        errors="replace",
    )


def end(job: subprocess.Popen) -> str:
    try:
        return job.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        job.terminate()
        pytest.fail(f"still running after {PATIENCE} s:\n{job.communicate()[0]}")


def train(*arguments: object, processes: int = 2, options: tuple = ()) -> str:
    job = start(*arguments, processes=processes, options=options)
    said = end(job)
    assert job.returncode == 0, said
    return said


def rank_of(process: str) -> str | None:
    try:
        variables = Path("/proc", process, "environ").read_bytes().split(b"\0")
        if Path("/proc", process, "exe").resolve() != PROGRAM.resolve():
            return None
    except OSError:
        return None
    return next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), None)


def wait_for(run: Path, step: int, job: subprocess.Popen) -> None:
    """Until a run has a checkpoint of that step or a later one."""
    until = time.monotonic() + PATIENCE
    while not any(int(p.name.removeprefix("step-")) >= step for p in run.glob("checkpoints/step-*")):
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)


def send(job: subprocess.Popen, rank: int, what: signal.Signals) -> None:
    children = Path("/proc", str(job.pid), "task", str(job.pid), "children").read_text().split()
    (process,) = (c for c in children if rank_of(c) == str(rank))
    os.kill(int(process), what)


def assert_close(a: Path, b: Path, tolerance: float = AGREE) -> None:
    first, second = log(a), log(b)
    assert [line["step"] for line in first] == [line["step"] for line in second]
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, float):
                assert value == pytest.approx(other[key], rel=tolerance, abs=tolerance), (one["step"], key)
            elif key != "windows":
                assert value == other[key], (one["step"], key)


def assert_weights_close(a: Path, b: Path, step: int, tolerance: float = AGREE) -> None:
    for name in ("model", "ema"):
        files = [run / f"checkpoints/step-{step}/{name}.safetensors" for run in (a, b)]
        assert files[0].exists() == files[1].exists()
        if not files[0].exists():
            continue
        first, second = load_file(files[0]), load_file(files[1])
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert (value - second[key]).abs().max() <= tolerance, key


@pytest.fixture
def text_run(text: Path) -> list:
    return ["--data", text, *SMALL, *SHORT]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_train_to_the_losses_of_one(text_run: list, tmp_path: Path, accumulate: int) -> None:
    recipe = [*text_run, *SIX, "--accumulate", accumulate, "--dropout", 0, "--ema", 0.9]
    contextpool_says("train", *recipe, "--run", tmp_path / "one")
    said = train(*recipe, "--run", tmp_path / "two")
    assert "2 processes" in said and said.count("step 6/6") == 1  # the first one tells
    assert_close(tmp_path / "one", tmp_path / "two")
    assert_weights_close(tmp_path / "one", tmp_path / "two", 6)


def test_processes_and_micro_batches_divide_a_batch_alike(text_run: list, tmp_path: Path) -> None:
    """With dropout: 2 processes of 1 part draw what 1 process of 2 parts draws."""
    recipe = [*text_run, *SIX, "--dropout", 0.2]
    contextpool_says("train", *recipe, "--run", tmp_path / "one", "--accumulate", 2)
    train(*recipe, "--run", tmp_path / "two")
    assert_close(tmp_path / "one", tmp_path / "two")


def test_a_run_is_resumed_with_another_number_of_processes(text_run: list, tmp_path: Path) -> None:
    recipe = [*text_run, "--dropout", 0, "--ema", 0.9, "--batch", 8]
    contextpool_says("train", *recipe, "--steps", 6, "--run", tmp_path / "one")
    train(*recipe, "--steps", 3, "--run", tmp_path / "two")
    contextpool_says("train", "--run", tmp_path / "two", "--resume", "--steps", 4)
    said = train("--run", tmp_path / "two", "--resume", "--steps", 6)
    assert said.count("resumed from") == 1
    assert_weights_close(tmp_path / "one", tmp_path / "two", 6)
    assert_losses_close(tmp_path / "one", tmp_path / "two")


def assert_losses_close(a: Path, b: Path) -> None:
    first, second = ([line["loss"] for line in log(run)] for run in (a, b))
    assert first == pytest.approx(second, rel=AGREE)


def test_a_sharded_optimizer_makes_the_same_files(text_run: list, tmp_path: Path) -> None:
    recipe = [*text_run, "--ema", 0.9, "--batch", 8]
    train(*recipe, "--run", tmp_path / "whole", "--steps", 6)
    train(*recipe, "--run", tmp_path / "sharded", "--shard-optimizer", "--steps", 3)
    train("--run", tmp_path / "sharded", "--resume", "--steps", 6)
    assert log(tmp_path / "whole")[-1] == log(tmp_path / "sharded")[-1]
    assert checkpoint(tmp_path / "whole", 6) == checkpoint(tmp_path / "sharded", 6)


def test_a_sharded_optimizer_is_saved_by_the_clock_too(text_run: list, tmp_path: Path) -> None:
    often = ["--shard-optimizer", "--checkpoint-minutes", 1e-6, "--checkpoint-every", 100, "--keep", 10]
    train(*text_run, *SIX, "--run", tmp_path / "run", *often, "--optimizer", "sgd")
    assert {p.name for p in (tmp_path / "run/checkpoints").glob("step-*")} >= {f"step-{i}" for i in range(1, 7)}


@pytest.mark.parametrize("model", ["cp-adaptive-span-12", "cp-longformer-12"])
def test_models_with_other_gradients_train_in_two_processes(text: Path, tmp_path: Path, model: str) -> None:
    """Adaptive spans have a regularizer, whose gradient is no part of the loss."""
    size = ["--model", model, "--data", text, "--layers", 2, "--features", 16, "--heads", 2, "--feedforward", 32]
    recipe = [*size, "--pool-hidden", 8, "--context", 64, *SHORT, *SIX, "--dropout", 0]
    contextpool_says("train", *recipe, "--run", tmp_path / "one")
    train(*recipe, "--run", tmp_path / "two")
    assert_close(tmp_path / "one", tmp_path / "two")


def test_classifiers_train_in_two_processes(tmp_path: Path) -> None:
    recipe = ["--preset", "shapes", "--device", "cpu", "--steps", 4, "--batch", 8, "--checkpoint-every", 4]
    recipe += ["--epochs", 0, "--warmup", 0, "--warmup-epochs", 0]
    contextpool_says("train", *recipe, "--run", tmp_path / "one", "--accumulate", 2)
    train(*recipe, "--run", tmp_path / "two")
    assert_losses_close(tmp_path / "one", tmp_path / "two")


def test_translators_train_in_two_processes(tmp_path: Path) -> None:
    recipe = ["--preset", "numbers", "--device", "cpu", "--steps", 4, "--checkpoint-every", 4, "--dropout", 0]
    recipe += ["--epochs", 0, "--eval-sentences", 4, "--numbers", 500]
    contextpool_says("train", *recipe, "--run", tmp_path / "one")
    train(*recipe, "--run", tmp_path / "two")
    assert_losses_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_ends_the_job_within_seconds(text_run: list, tmp_path: Path, killed: int) -> None:
    job = start(*text_run, "--run", tmp_path / "run", "--steps", 10**6, "--batch", 8)
    wait_for(tmp_path / "run", 3, job)
    send(job, killed, signal.SIGKILL)
    begin = time.monotonic()
    said = end(job)
    assert time.monotonic() - begin < 20
    assert job.returncode != 0
    assert f"rank {1 - killed} of 2 lost rank {killed} " in said
    assert "--resume continues from the newest checkpoint" in said


def test_max_restarts_carries_on_from_the_checkpoint(text_run: list, tmp_path: Path) -> None:
    recipe = [*text_run, "--steps", 400, "--batch", 8, "--checkpoint-every", 20]
    train(*recipe, "--run", tmp_path / "whole")
    job = start(*recipe, "--run", tmp_path / "killed", options=("--max-restarts=1",))
    wait_for(tmp_path / "killed", 40, job)
    send(job, 1, signal.SIGKILL)
    said = end(job)
    assert job.returncode == 0, said
    assert "resumed from" in said and "step 400/400" in said
    assert checkpoint(tmp_path / "whole", 400) == checkpoint(tmp_path / "killed", 400)
    assert log(tmp_path / "whole") == log(tmp_path / "killed")


def test_restarts_do_not_resume_a_run_that_was_there_before(text_run: list, tmp_path: Path) -> None:
    contextpool_says("train", *text_run, "--run", tmp_path / "run", "--steps", 3)
    job = start(*text_run, *SIX, "--run", tmp_path / "run", options=("--max-restarts=1",))
    said = end(job)
    assert job.returncode != 0
    assert said.count("exists already") == 2 and "resumed from" not in said


def test_a_signal_to_one_process_stops_all_after_the_same_step(text_run: list, tmp_path: Path) -> None:
    job = start(*text_run, "--run", tmp_path / "run", "--steps", 10**6, "--batch", 8)
    wait_for(tmp_path / "run", 3, job)
    send(job, 1, signal.SIGTERM)
    said = end(job)
    assert "and saved; --resume continues" in said and "lost" not in said
    done = len(log(tmp_path / "run"))
    assert f"stopped at step {done} and saved" in said
    assert "resumed from" in train("--run", tmp_path / "run", "--resume", "--steps", done + 2)


def test_steps_that_are_not_finite_are_skipped_by_all(text_run: list, tmp_path: Path) -> None:
    job = start(*text_run, *SIX, "--run", tmp_path / "run", "--lr", 1e30, "--clip", 0, "--give-up", 2)
    said = end(job)
    assert job.returncode != 0
    assert said.count("2 steps in a row had a loss or gradient that is not finite") == 2  # each of them says so
    assert [line.get("skipped", False) for line in log(tmp_path / "run")][-2:] == [True, True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_process_on_a_gpu_trains_through_nccl(text: Path, tmp_path: Path) -> None:
    recipe = ["--data", text, *SMALL, *SIX, "--length", 32, "--device", "cuda", "--eval-tokens", 200, "--dropout", 0]
    contextpool_says("train", *recipe, "--run", tmp_path / "one")
    train(*recipe, "--run", tmp_path / "nccl", processes=1)
    assert_losses_close(tmp_path / "one", tmp_path / "nccl")


def test_processes_with_different_data_are_refused(text_run: list, tmp_path: Path, text: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(text.read_bytes()[:-1])
    pick = f'if [ $RANK = 1 ]; then cp {other} {tmp_path}/text$RANK; else cp {text} {tmp_path}/text$RANK; fi; '
    words = [str(w) for w in text_run if w != text and w != "--data"]
    script = f'{pick} exec {PROGRAM} train --data {tmp_path}/text$RANK {" ".join(words)} --run {tmp_path}/run'
    job = subprocess.run(
        [*TORCHRUN, "--nproc-per-node=2", "--", "bash", "-c", script],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **ALONE},
        timeout=PATIENCE,
    )
    assert job.returncode != 0
    assert "the processes of this job do not have the same" in job.stderr
    assert not (tmp_path / "run").exists()


def test_a_batch_has_a_part_for_every_process(text_run: list, tmp_path: Path) -> None:
    job = start(*text_run, "--run", tmp_path / "run", "--batch", 1)
    said = end(job)
    assert job.returncode != 0
    assert "a batch has only 1 rows" in said


def test_an_environment_that_makes_no_sense_is_refused(text_run: list, tmp_path: Path) -> None:
    wrong = {"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    done = call("train", *text_run, "--run", tmp_path / "run", **wrong)
    assert done.returncode == 2
    assert "the environment has RANK=2, expected a whole number from 0 to 1" in done.stderr


def test_a_config_is_printed_without_meeting_the_others(text_run: list) -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    done = call("train", *text_run, "--print-config", **job)
    assert done.returncode == 0
    assert "shard-optimizer" in done.stdout and json.dumps("processes") not in done.stdout
