"""A run that was killed, stopped or damaged and then resumed ends with the same bits as one that went through."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from program import SHORT, SMALL, assert_same_run, call, checkpoint, contextpool_says, log, start

STEPS = 80
RECIPE = [*SMALL, *SHORT, "--model", "cp-tiny", "--steps", STEPS, "--lr", "3e-3", "--warmup", 5, "--schedule", "cosine"]
RECIPE += ["--dropout", "0.1", "--ema", "0.9", "--accumulate", 2, "--checkpoint-every", 10, "--keep", 2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    contextpool_says("train", "--run", run, "--data", text, *RECIPE)
    return run


def interrupt(run: Path, text: Path, how: signal.Signals, checkpoints: int = 1) -> tuple[int, str]:
    """Trains until there are so many checkpoints, then sends the signal."""
    process = start("train", "--run", run, "--data", text, *RECIPE)
    while len(list(run.glob("checkpoints/step-*"))) < checkpoints:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.send_signal(how)
    output = process.communicate()[0]
    return process.returncode, output


def test_after_kill_9(tmp_path: Path, text: Path, whole: Path) -> None:
    run = tmp_path / "run"
    status, _ = interrupt(run, text, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert len(log(run) if (run / "log.jsonl").read_text().endswith("\n") else []) < STEPS
    assert "resumed from" in contextpool_says("train", "--run", run, "--resume")
    assert_same_run(whole, run, STEPS)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_after_a_signal_that_saves(tmp_path: Path, text: Path, whole: Path, how: signal.Signals) -> None:
    run = tmp_path / "run"
    status, output = interrupt(run, text, how)
    assert status == 128 + how, output
    assert "and saved; --resume continues" in output
    newest = max(int(p.name[5:]) for p in run.glob("checkpoints/step-*"))
    assert newest == log(run)[-1]["step"] < STEPS
    contextpool_says("train", "--run", run, "--resume")
    assert_same_run(whole, run, STEPS)


def test_saves_when_the_reader_of_its_output_has_gone(tmp_path: Path, text: Path, whole: Path) -> None:
    run = tmp_path / "run"
    process = start("train", "--run", run, "--data", text, *RECIPE, "--print-every", 1)
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.stdout.close()
    assert process.wait() == 128 + signal.SIGPIPE
    newest = max(int(p.name[5:]) for p in run.glob("checkpoints/step-*"))
    assert newest == log(run)[-1]["step"] < STEPS
    contextpool_says("train", "--run", run, "--resume")
    assert_same_run(whole, run, STEPS)


def test_refuses_where_no_manifest_can_be_read_and_keeps_all(tmp_path: Path, text: Path, whole: Path) -> None:
    run = tmp_path / "run"
    interrupt(run, text, signal.SIGTERM, checkpoints=2)
    for manifest in run.glob("checkpoints/step-*/MANIFEST.json"):
        manifest.write_bytes(b"")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    done = call("train", "--run", run, "--resume")
    assert done.returncode == 1 and "no checkpoint passes verification (step-" in done.stderr
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert "--unverified" in done.stderr
    assert "resumed from" in contextpool_says("train", "--run", run, "--resume", "--unverified")
    assert_same_run(whole, run, STEPS)


def test_the_text_may_move_but_not_change(tmp_path: Path, text: Path, whole: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    moved.write_bytes(text.read_bytes())
    interrupt(run, moved, signal.SIGTERM)
    moved.rename(tmp_path / "elsewhere")
    gone = call("train", "--run", run, "--resume")
    assert gone.returncode == 1 and str(moved) in gone.stderr
    (tmp_path / "grown").write_bytes(text.read_bytes() + b"more")
    other = call("train", "--run", run, "--resume", "--data", tmp_path / "grown")
    assert other.returncode == 1 and "not the text of this run" in other.stderr and "it has grown" in other.stderr
    contextpool_says("train", "--run", run, "--resume", "--data", tmp_path / "elsewhere")
    assert_same_run(whole, run, STEPS)
    assert f'data = "{tmp_path / "elsewhere"}"' in (run / "config.toml").read_text()


def test_a_finished_run_says_so_and_stays(whole: Path) -> None:
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    for flags in ([], ["--batch", "4"]):
        assert f"finished already, at step {STEPS}" in contextpool_says("train", "--run", whole, "--resume", *flags)
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


def test_an_option_that_the_run_left_to_its_model_is_named(whole: Path) -> None:
    done = call("train", "--run", whole, "--resume", "--taps", "3")
    assert done.returncode == 2 and "the run has --taps 15, not 3" in done.stderr
    assert "finished already" in contextpool_says("train", "--run", whole, "--resume", "--taps", "15")


def test_a_removed_folder_ends_the_run_without_saying_saved(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    process = start("train", "--run", run, "--data", text, *RECIPE, "--steps", "100000")
    while not list(run.glob("checkpoints/step-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    run.rename(tmp_path / "gone")
    said = process.communicate()[0]
    assert process.returncode == 1 and "was removed or replaced" in said and "saved" not in said
    assert not run.exists()


def test_falls_back_from_a_flipped_byte_and_says_so(tmp_path: Path, text: Path, whole: Path) -> None:
    run = tmp_path / "run"
    interrupt(run, text, signal.SIGTERM, checkpoints=2)
    steps = sorted(int(p.name[5:]) for p in run.glob("checkpoints/step-*"))
    broken = run / "checkpoints" / f"step-{steps[-1]}" / "optimizer.safetensors"
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(data)
    said = contextpool_says("train", "--run", run, "--resume")
    assert "skipped a broken checkpoint" in said and broken.parent.name in said
    assert_same_run(whole, run, STEPS)


def test_goes_on_when_the_disk_is_full(tmp_path: Path, text: Path, whole: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "none", disk], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        (disk / "filler").write_bytes(bytes(500_000))
        process = start("train", "--run", disk / "run", "--data", text, *RECIPE)
        said = ""
        for line in process.stdout:
            said += line
            if "was not written, training continues" in line:
                (disk / "filler").unlink(missing_ok=True)  # room again
        assert process.wait() == 0, said
        assert "No space left on device" in said
        assert checkpoint(disk / "run", STEPS) == checkpoint(whole, STEPS)
        assert log(disk / "run") == log(whole)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_second_process_is_kept_out(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    process = start("train", "--run", run, "--data", text, *RECIPE, "--steps", "100000")
    try:
        while not list(run.glob("checkpoints/step-*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        second = call("train", "--run", run, "--resume")
        assert second.returncode == 1
        assert str(run) in second.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 143
    steps = [line["step"] for line in log(run)]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("flags", [["--seed", "9"], ["--layers", "2"], ["--model", "tiny"], ["--dropout", "0"]])
def test_a_resumed_run_stays_the_run_it_was(whole: Path, flags: list[str]) -> None:
    before = (whole / "config.toml").read_text()
    done = call("train", "--run", whole, "--resume", *flags)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and flags[0] in done.stderr and "keeps it" in done.stderr
    assert (whole / "config.toml").read_text() == before


def test_a_run_may_be_made_longer(tmp_path: Path, text: Path) -> None:
    run = tmp_path / "run"
    contextpool_says("train", "--run", run, "--data", text, *SMALL, *SHORT, "--steps", 2)
    contextpool_says("train", "--run", run, "--resume", "--steps", 4)
    assert [line["step"] for line in log(run)] == [1, 2, 3, 4]
    assert "steps = 4" in (run / "config.toml").read_text()
