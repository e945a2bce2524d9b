"""`contextpool reproduce`: a table's runs as one list that survives being killed, and the table that they give."""

import fcntl
import json
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from program import ENVIRONMENT, PROGRAM, SMALL, call, start

TINY = " ".join([*SMALL, "--length 32 --batch 2 --steps 6 --checkpoint-every 6 --eval-tokens 200 --warmup 2"])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "a text"
    file.write_bytes(b"".join(b"line %d of a text that is not long, but long enough\n" % i for i in range(1500)))
    return file


def reproduce(*arguments: object) -> subprocess.CompletedProcess:
    return call("reproduce", *arguments)


def results(out: Path) -> dict[str, dict]:
    return {p.stem: json.loads(p.read_text()) for p in (out / "results").glob("*.json")}


def command(text: Path, out: Path, *more: object) -> list[object]:
    return ["mixers", "--data", text, "--out", out, "--rows", "plain,cp-1", "--device", "cpu", "--train", TINY, *more]


def wait_for(condition: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_table_is_run_scored_printed_and_not_run_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = reproduce(*command(text, out, "--jobs", 2))
    assert done.returncode == 0, done.stderr
    found = results(out)
    assert set(found) == {"plain-seed-1", "plain-seed-2", "cp-1-seed-1", "cp-1-seed-2"}
    one = found["cp-1-seed-2"]
    log = [json.loads(line) for line in (out / "cp-1-seed-2/run/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2, 3, 4, 5, 6]  # --train replaces what the recipe has
    assert one["scores"]["test bpc"] == one["evaluations"]["test bpc"]["bpc"]
    assert one["seconds_a_step"] == pytest.approx(statistics.median_high(x["time"]["seconds"] for x in log))
    assert one["memory"] == max(x["time"]["memory"] for x in log)
    assert one["macs_with_pooling"] > one["macs"] > 0 and one["per"].startswith("token")
    assert one["hardware"]["cores"] >= 1 and one["at_once"] == 2 and one["torch"].startswith("2.")
    assert 'model = "tiny"' in one["config"] and "--pool-groups 1" in one["command"]
    # What is printed is what is in the file, with the figures of the results.
    assert done.stdout == (out / "table.md").read_text()
    plain = [found[f"plain-seed-{s}"]["scores"]["test bpc"] for s in (1, 2)]
    row = next(line for line in done.stdout.splitlines() if line.startswith("| plain "))
    assert f"| {statistics.mean(plain):.3f} ({statistics.stdev(plain):.3f}) " in row
    pool = [found[f"cp-1-seed-{s}"]["scores"]["test bpc"] for s in (1, 2)]
    differences = [a - b for a, b in zip(pool, plain)]
    half = 12.706204736174694 * statistics.stdev(differences) / 2**0.5  # Student's t of one degree of freedom
    middle = statistics.mean(differences)
    assert f"| {middle:+.3f} [{middle - half:+.3f}, {middle + half:+.3f}] " in done.stdout
    assert "a text (" in done.stdout and "stand-in for enwik8 and text8" in done.stdout
    assert "| paper " not in done.stdout
    # Again: nothing is run; another seed: only that.
    before = {p: p.stat().st_mtime_ns for p in (out / "results").iterdir()}
    repeated = reproduce(*command(text, out))
    assert repeated.returncode == 0 and repeated.stdout == done.stdout
    assert "starts" not in repeated.stderr and "4 of 4 runs done" in repeated.stderr
    third = reproduce(*command(text, out, "--seeds", "1,2,3"))
    assert third.returncode == 0 and third.stderr.count(": starts") == 2
    assert all(p.stat().st_mtime_ns == at for p, at in before.items())
    report = reproduce("mixers", "--out", out, "--report", "--train", TINY, "--against", "cp-1")
    assert report.returncode == 0 and "4 of" not in report.stderr and "| cp-1 " in report.stdout


def test_a_killed_call_goes_on_and_gives_the_same(text: Path, tmp_path: Path) -> None:
    longer = TINY.replace("--steps 6 --checkpoint-every 6", "--steps 400 --checkpoint-every 400")
    straight, killed = tmp_path / "straight", tmp_path / "killed"

    def arguments(out: Path) -> list[object]:
        return ["mixers", "--data", text, "--out", out, "--rows", "plain,cp-1", "--seeds", "1", "--device", "cpu",
                "--train", longer, "--jobs", 2, "--threads", 1]  # fmt: skip

    logs = [killed / name / "run/log.jsonl" for name in ("plain-seed-1", "cp-1-seed-1")]

    def lines() -> list[int]:
        return [len(log.read_text().splitlines()) if log.exists() else 0 for log in logs]

    for number, at in ((signal.SIGTERM, 40), (signal.SIGKILL, 150)):
        process = start("reproduce", *arguments(killed))
        wait_for(lambda at=at: min(lines()) >= at)  # type: ignore[misc]
        process.send_signal(number)
        process.communicate()
        assert process.returncode in (128 + number, -number)
        assert not results(killed) and max(lines()) < 400
    done = reproduce(*arguments(killed))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": goes on") == 2
    assert reproduce(*arguments(straight)).returncode == 0
    a, b = results(straight), results(killed)
    assert set(a) == set(b) == {"plain-seed-1", "cp-1-seed-1"}
    for name in a:  # on a CPU the same to the last bit
        assert a[name]["scores"] == b[name]["scores"]
        assert "resumed from" in (killed / name / "0.done").read_text()


def test_a_call_waits_for_a_process_of_the_one_before_that_still_saves(text: Path, tmp_path: Path) -> None:
    longer = TINY.replace("--steps 6 --checkpoint-every 6", "--steps 400 --checkpoint-every 400")
    arguments = ["mixers", "--data", text, "--out", tmp_path / "out", "--rows", "plain", "--seeds", "1",
                 "--device", "cpu", "--train", longer]  # fmt: skip
    run = tmp_path / "out/plain-seed-1/run"
    process = start("reproduce", *arguments)
    wait_for(lambda: (run / "log.jsonl").exists() and len((run / "log.jsonl").read_text().splitlines()) >= 20)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    saving = os.open(run / "checkpoints", os.O_RDONLY)  # as that process has it
    fcntl.flock(saving, fcntl.LOCK_EX)
    begun, said_before = tmp_path / "out/plain-seed-1/job.json", tmp_path / "out/plain-seed-1/0.err"
    before = begun.stat().st_mtime_ns
    said_before.unlink()  # made anew when training starts
    process = start("reproduce", *arguments)
    wait_for(lambda: begun.stat().st_mtime_ns != before)
    time.sleep(0.5)
    assert process.poll() is None and not said_before.exists()
    os.close(saving)
    said = process.communicate()[0]
    assert process.returncode == 0 and "1 of 1 runs done" in said, said


def test_time_that_is_up_leaves_the_rest_for_the_next_call(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = TINY.replace("--steps 6", "--steps 100000")
    short = ["mixers", "--data", text, "--out", out, "--rows", "plain", "--seeds", "1,2", "--train", slow]
    done = reproduce(*short, "--minutes", 0.08, "--device", "cpu")
    assert done.returncode == 3, done.stderr
    assert "0 of 2 runs done, 0 failed, 2 left; the same command goes on" in done.stderr
    assert list((out / "plain-seed-1/run/checkpoints").glob("step-*"))
    assert not (out / "plain-seed-2").exists()


def test_a_run_that_fails_is_told_with_its_last_line_and_stops_no_other(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ["--data", text, "--out", out, "--device", "cpu", "--seeds", "1"]
    bad = TINY + " --heads 3"  # 16 features are no multiple of it, whatever the mixer
    done = reproduce("mixers", "--rows", "plain,cp-1", *more, "--train", bad)
    assert done.returncode == 1
    assert done.stderr.count(": failed: contextpool: ") == 2 and "heads" in done.stderr
    assert "- plain-seed-1: contextpool: " in done.stdout and not results(out)
    # 16 features in 16 groups can be, but not in 7: only that row fails.
    other = reproduce("mixers", "--rows", "plain,cp-16", "--data", text, "--out", tmp_path / "b", "--device", "cpu",
                      "--seeds", "1", "--train", TINY.replace("--features 16", "--features 8"))  # fmt: skip
    assert other.returncode == 1, other.stderr
    assert set(results(tmp_path / "b")) == {"plain-seed-1"}
    assert "1 of 2 runs done, 1 failed, 0 left" in other.stderr


def test_the_list_names_every_command_and_writes_nothing(text: Path, tmp_path: Path) -> None:
    done = reproduce("table-5", "--scale", "small", "--list", "--out", tmp_path / "out")
    assert done.returncode == 0 and not (tmp_path / "out").exists()
    lines = done.stdout.splitlines()
    assert len(lines) == 9 * 3 * 2  # rows, seeds, training and scoring
    assert all(line.startswith(("contextpool train --preset spec-lm ", "contextpool eval ")) for line in lines)
    assert "--data TEXT" in lines[0]
    with_data = reproduce("table-5", "--list", "--data", text, "--rows", "cp-2", "--out", tmp_path / "out")
    assert f"--data '{text}'" in with_data.stdout


def test_every_row_of_every_table_is_a_command_that_train_understands(text: Path, tmp_path: Path) -> None:
    """The rows at the scales that are too large for tests, as far as a config."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "enwik8").write_bytes(b"<mediawiki xmlns")
    os.truncate(folder / "enwik8", 100_000_000)
    (folder / "text8").write_bytes(b" anarchism originated as a term of abuse first")
    os.truncate(folder / "text8", 100_000_000)
    for name in ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]:
        (folder / f"{name}.bin").touch()
        os.truncate(folder / f"{name}.bin", 30_730_000)
    for name in ["train", "val", "test_2016_flickr", "test_2017_flickr", "test_2018_flickr"]:
        for language in ("en", "de"):
            (folder / f"{name}.{language}").write_text("x\n")
    (folder / "text.txt").write_bytes(text.read_bytes())
    help_text = reproduce("--help").stdout
    scales = {line.split()[0]: line[line.rindex("(") + 1 : -1].split(", ")
              for line in help_text[help_text.index("Tables") :].splitlines()[1:] if line.strip()}  # fmt: skip
    assert set(scales) == {"table-5", "mixers", "recall", "k-hop", "predictor", "placements", "ablations", "table-4",
                           "table-6", "table-s1", "vit-forms", "resnet-forms"}  # fmt: skip
    for table, names in scales.items():
        for scale in names[1:]:
            done = reproduce(table, "--scale", scale, "--list", "--seeds", 1, "--data", folder)
            assert done.returncode == 0, done.stderr
            trains = [line for line in done.stdout.splitlines() if line.startswith("contextpool train")]
            script = "\n".join(line.replace("contextpool", f"'{PROGRAM}'", 1) + " --print-config" for line in trains)
            checked = subprocess.run(["bash", "-e"], input=script, capture_output=True, text=True, env=ENVIRONMENT)
            assert checked.returncode == 0, f"{table} {scale}: {checked.stderr}"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "reproduce needs a table: table-5, mixers"),
        (["table5"], 2, 'unknown table "table5"; did you mean "table-5"?'),
        (["mixers", "--scale", "large"], 2, 'mixers has no scale "large"'),
        (["mixers", "--scale", "paper"], 2, "there are smoke, demo, small"),
        (["mixers"], 2, 'data "text" are needed'),
        (["table-4", "--scale", "small"], 2, 'data "test2016.de" are needed'),
        (["mixers", "--data", "missing"], 2, "missing: there is no such file or folder"),
        (["mixers", "--data", "text=missing"], 2, "missing: there is no such file or folder"),
        (["mixers", "--data", "DATA", "--rows", "plane"], 2, 'unknown row "plane"; did you mean "plain"?'),
        (["mixers", "--data", "DATA", "--against", "x"], 2, 'unknown row "x"'),
        (["mixers", "--data", "DATA", "--jobs", "0"], 2, "--jobs is 0, expected 1 to 64"),
        (["mixers", "--data", "DATA", "--minutes", "-1"], 2, "expected 0 (no limit) or more"),
        (["mixers", "--data", "DATA", "--seeds", "1,1"], 2, "--seeds names 1 twice"),
        (["mixers", "--data", "DATA", "--list", "--report"], 2, "give one of them"),
        (["mixers", "--data", "DATA", "--out", "SOMETHING"], 2, "exists and has no results of `contextpool reproduce`"),
        (["mixers", "--report", "--out", "SOMETHING"], 2, "has no results of `contextpool reproduce`"),
        (["table-5", "--scale", "paper", "--data", "enwik8=DATA", "--rows", "enwik8-cp-12"], 2, "is not enwik8"),
        (["table-s1", "--scale", "paper", "--data", "cifar10=DATA"], 2, "expected a folder"),
        (["table-5", "--scale", "paper", "--data", "DATA"], 2, "must be said: --data ROLE="),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: list[str], status: int, message: str, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "something").mkdir()
    (tmp_path / "something/else").touch()
    places = {"DATA": str(text), "enwik8=DATA": f"enwik8={text}", "cifar10=DATA": f"cifar10={text}",
              "SOMETHING": str(tmp_path / "something")}  # fmt: skip
    words = [places.get(word, word) for word in arguments]
    if "--out" not in words and words:
        words += ["--out", str(tmp_path / "out")]
    done = reproduce(*words)
    assert done.returncode == status and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out/results").exists()
    assert [p.name for p in (tmp_path / "something").iterdir()] == ["else"]


def test_generated_rows_need_no_data_and_are_compared_by_layers(tmp_path: Path) -> None:
    few = "--steps 2 --checkpoint-every 2 --warmup 1 --eval-tokens 200"
    rows = "plain-2,canon-2,plain-3,canon-3"
    done = reproduce("recall", "--rows", rows, "--seeds", "1,2", "--train", few, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "out")
    assert len(found) == 8 and 0 <= found["canon-3-seed-1"]["scores"]["right %"] <= 100
    line = next(x for x in done.stdout.splitlines() if x.startswith("| canon at A and C, 3 layers"))
    scores = {run: result["scores"]["right %"] for run, result in found.items()}
    gains = [scores[f"canon-3-seed-{seed}"] - scores[f"plain-3-seed-{seed}"] for seed in (1, 2)]
    assert f"{statistics.mean(gains):+.1f}" in line


def test_a_folder_keeps_to_its_table_recipe_and_data(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reproduce(*command(text, out, "--seeds", 1, "--rows", "plain")).returncode == 0
    other = tmp_path / "other"
    other.write_bytes(text.read_bytes() + b"more")
    for arguments, message in [
        (["placements", "--data", text, "--train", TINY], 'has results of table "mixers", not "placements"'),
        (["mixers", "--data", text], "has results of train"),
        (["mixers", "--data", other, "--train", TINY], 'has results on another "text"'),
    ]:
        done = reproduce(*arguments, "--out", out)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    job = out / "plain-seed-1/job.json"  # as a version of the program with another recipe would have left it
    job.write_text(job.read_text().replace("--preset tiny", "--preset quick"))
    (out / "results/plain-seed-1.json").unlink()
    done = reproduce(*command(text, out, "--seeds", 1, "--rows", "plain"))
    assert done.returncode == 1 and "is of another recipe than the row" in done.stderr, done.stderr
    result = out / "results/plain-seed-1.json"
    result.write_text("{}")
    done = reproduce(*command(text, out, "--seeds", 1, "--rows", "plain"))
    assert done.returncode == 1 and "is not the result of a run" in done.stderr, done.stderr


def test_damaged_files_of_results_are_named(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = command(text, out, "--seeds", 1, "--rows", "plain")
    assert reproduce(*arguments).returncode == 0
    result, setting = out / "results/plain-seed-1.json", out / "reproduce.json"
    good = result.read_text(), setting.read_text()
    result.write_text(good[0].replace('"test bpc": ', '"other": '))
    for more in ([], ["--report"]):
        done = reproduce(*arguments, *more)
        assert done.returncode == 1 and f"{result}: is not the result of a run" in done.stderr, done.stderr
    result.write_text(good[0])
    for wrong in (good[1].replace('"name": ', '"nome": '), good[1].replace('"bytes": ', '"bytes": "many", "some": ')):
        setting.write_text(wrong)
        for more in ([], ["--report"]):
            done = reproduce(*arguments, *more)
            assert done.returncode == 2 and f"{setting}: is damaged" in done.stderr, done.stderr
    setting.write_text(good[1])
    (out / "results").rename(tmp_path / "results")
    done = reproduce(*arguments, "--report")
    assert done.returncode == 1 and f"{out}/results: cannot read: No such file or directory" in done.stderr
