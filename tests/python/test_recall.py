"""Generated rows through the program: recall and k-hop are learnt without a file, resumed to the bit, scored by group."""

import json
from pathlib import Path

import pytest

import contextpool
from program import assert_same_run, call, contextpool_says, log

TINY = ["--model", "tiny", "--mix", "AC=canon", "--layers", 1, "--features", 32, "--feedforward", 64]
TRAIN = [*TINY, "--device", "cpu", "--threads", 1, "--batch", 16, "--schedule", "constant"]
RECALL = ["--data", "recall", "--symbols", 17, "--pairs", 4, "--length", 24, "--lr", 5e-3, "--eval-tokens", 2400]
HOPS = ["--data", "k-hop", "--symbols", 16, "--pairs", 6, "--hops", 2, "--length", 24, "--eval-tokens", 480]


@pytest.fixture(scope="module")
def recall(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("recall") / "run"
    contextpool_says("train", "--run", run, *TRAIN, *RECALL, "--steps", 200, "--checkpoint-every", 100)
    return run


def test_recall_is_learnt_and_scored_on_other_rows(recall: Path) -> None:
    lines = log(recall)
    assert lines[0]["tokens"] == 16 * 24
    assert lines[0]["loss"] > 2 and "bpc" not in lines[0]
    assert lines[-1]["dev_accuracy"] > 0.9, "chance is 1 in 4"
    score = json.loads(contextpool_says("eval", "--run", recall, "--json"))
    assert score["answers"] == 1000 * 8 and score["split"] == "test"
    assert score["accuracy"] > 0.9
    assert [group["pairs"] for group in score["by"]] == [1, 2, 4]
    assert score["by"][-1]["accuracy"] == score["accuracy"]
    dev = json.loads(contextpool_says("eval", "--run", recall, "--split", "dev", "--tokens", 2400, "--json"))
    assert dev["accuracy"] == lines[-1]["dev_accuracy"]
    assert dev["loss"] == pytest.approx(lines[-1]["dev_loss"], rel=1e-5)
    assert "4 pairs" in contextpool_says("eval", "--run", recall, "--tokens", 240)


def test_other_rows_can_be_asked_for(recall: Path) -> None:
    score = json.loads(
        contextpool_says("eval", "--run", recall, "--pairs", 6, "--window", 20, "--tokens", 200, "--json")
    )
    assert score["answers"] == 10 * 4 and score["length"] == 20
    file = next((recall / "checkpoints").glob("step-200")) / "model.safetensors"
    alone = contextpool_says("eval", "--checkpoint", file, "--data", "recall", "--pairs", 4, "--tokens", 2400, "--json")
    assert json.loads(alone)["answers"] == 100 * 8


def test_the_best_checkpoint_is_that_of_the_highest_accuracy(recall: Path) -> None:
    state = [json.loads(line) for line in (recall / "log.jsonl").read_text().splitlines()]
    accuracies = {line["step"]: line["dev_accuracy"] for line in state if "dev_accuracy" in line}
    best = max(accuracies, key=lambda step: accuracies[step])
    which = json.loads(
        contextpool_says("eval", "--run", recall, "--which", "best", "--split", "dev", "--tokens", 2400, "--json")
    )
    assert which["accuracy"] == accuracies[best]


def test_hops_are_scored_one_by_one(tmp_path: Path) -> None:
    contextpool_says("train", "--run", tmp_path / "run", *TRAIN, *HOPS, "--steps", 4)
    last = log(tmp_path / "run")[-1]
    assert {"dev_accuracy", "dev_accuracy_1_hops", "dev_accuracy_2_hops"} <= last.keys()
    score = json.loads(contextpool_says("eval", "--run", tmp_path / "run", "--json"))
    assert [group["hops"] for group in score["by"]] == [1, 2]
    assert contextpool.models.load(tmp_path / "run").options.vocabulary == 16


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    flags = [*TRAIN, *HOPS, "--mixer-residual", "none", "--checkpoint-every", 3]
    contextpool_says("train", "--run", tmp_path / "whole", *flags, "--steps", 7)
    contextpool_says("train", "--run", tmp_path / "parts", *flags, "--steps", 3)
    contextpool_says("train", "--run", tmp_path / "parts", "--resume", "--steps", 7, "--loaders", 2)
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 7)
    refused = call("train", "--run", tmp_path / "parts", "--resume", "--steps", 9, "--pairs", 5)
    assert refused.returncode == 1 and "not the data of this run" in refused.stderr


def test_micro_batches_see_the_same_rows(tmp_path: Path) -> None:
    for parts in (1, 4):
        contextpool_says("train", "--run", tmp_path / str(parts), *TRAIN, *RECALL, "--steps", 3, "--accumulate", parts)
    one, four = (log(tmp_path / str(parts))[-1]["loss"] for parts in (1, 4))
    assert one == pytest.approx(four, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    (
        (["--data", "recall", "--length", 25], "expected an even number"),
        (["--data", "recall", "--length", 32, "--pairs", 16], "16 pairs need 32"),
        (["--data", "recall", "--symbols", 20], "symbols must be from 33"),
        (["--data", "k-hop", "--hops", 0], "hops must be from 1 to 16"),
    ),
)
def test_rows_that_cannot_be_are_refused(flags: list, words: str, tmp_path: Path) -> None:
    refused = call("train", "--model", "tiny", *flags, "--run", tmp_path / "run")
    assert refused.returncode == 2 and words in refused.stderr
    assert not (tmp_path / "run").exists()


def test_training_rows_are_not_scored(recall: Path) -> None:
    refused = call("eval", "--run", recall, "--split", "train")
    assert refused.returncode == 2 and "dev or test" in refused.stderr


def test_a_file_of_that_name_is_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recall").write_text("some text, and more of it. " * 200)
    monkeypatch.chdir(tmp_path)
    contextpool_says(
        "train", "--run", "run", *TRAIN, "--data", "recall", "--length", 16, "--steps", 2, "--eval-tokens", 100
    )
    assert "bpc" in log(tmp_path / "run")[-1]
