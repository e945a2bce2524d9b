"""Translation through the program: training, resuming, scores, translating a pipe, and what it makes of bad input."""

import base64
import gzip
import json
import subprocess
from pathlib import Path

import pytest
import sacrebleu
import sentencepiece
import torch
from safetensors.torch import load_file

import contextpool.models
from program import ENVIRONMENT, PROGRAM, call, checkpoint, contextpool_says

TINY = ["--model", "nmt-tiny", "--layers", "1", "--features", "32", "--heads", "2", "--feedforward", "64"]
NUMBERS = ["--data", "numbers-de", "--numbers", "1000", "--vocabulary-size", "80", "--max-length", "64"]
SHORT = ["--batch", "1500", "--lr", "1e-2", "--eval-sentences", "8", "--device", "cpu", "--threads", "1"]
EVERY = ["--checkpoint-every", "10", "--steps", "40"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation") / "run"
    said = contextpool_says("train", "--run", folder, *TINY, *NUMBERS, *SHORT, *EVERY)
    assert " exact " in said
    return folder


def translate(*arguments: object, lines: bytes) -> subprocess.CompletedProcess:
    command = [str(PROGRAM), "translate", *map(str, arguments), "--device", "cpu"]
    return subprocess.run(command, input=lines, capture_output=True, env=ENVIRONMENT)


def said_of(text: subprocess.CompletedProcess) -> str:
    """The one line of an error, after the one that may name the checkpoint."""
    lines = [line for line in text.stderr.splitlines() if not line.startswith("contextpool: using ")]
    assert text.returncode in (1, 2) and len(lines) == 1, text
    return lines[0]


def test_a_run_learns_and_resumes_to_the_same_bits(run: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert {"dev_exact", "dev_loss"} <= lines[-1].keys()
    assert json.loads((run / "checkpoints" / "BEST.json").read_text())["metric"] == "dev_exact"
    resumed = tmp_path / "again"
    contextpool_says("train", "--run", resumed, *TINY, *NUMBERS, *SHORT, "--checkpoint-every", 10, "--steps", 20)
    contextpool_says("train", "--run", resumed, "--resume", "--steps", 40)
    first, second = checkpoint(run, 40), checkpoint(resumed, 40)
    assert first.keys() == second.keys()
    assert all(first[name] == second[name] for name in first)


def test_eval_agrees_with_sacrebleu(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    said = json.loads(
        contextpool_says("eval", "--run", run, "--sentences", 50, "--output", output, "--json", "--device", "cpu")
    )
    assert said["sentences"] == 50 and 0 <= said["exact"] <= 100
    assert len(output.read_text().splitlines()) == 50

    source, target = tmp_path / "source", tmp_path / "target"
    target.write_text("ein Hund läuft.\nZwei Katzen, sie schlafen!\nDrei Vögel singen im Baum\n\n")
    source.write_text("a dog runs.\nTwo cats, they sleep!\nThree birds sing in the tree\n\n")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("ein Hund rennt.\nzwei Katzen, sie schlafen!\nDrei Vögel singen in dem Baum\n\n")
    theirs.write_text("der Hund\nKatzen schlafen sie\nVögel singen\nnichts\n")
    data = ["--data", source, "--target", target]
    said = json.loads(contextpool_says("eval", "--hypotheses", ours, "--against", theirs, *data, "--json"))
    references = [target.read_text().split("\n")[:4]]
    hypotheses = ours.read_text().split("\n")[:4]
    bleu, chrf = sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF()
    assert said["BLEU"]["score"] == pytest.approx(bleu.corpus_score(hypotheses, references).score, abs=1e-6)
    assert said["chrF2"]["score"] == pytest.approx(chrf.corpus_score(hypotheses, references).score, abs=1e-6)
    assert said["BLEU"]["signature"] == str(bleu.get_signature())
    assert said["exact"] == 25
    paired = said["BLEU"]["paired"]
    assert paired["system"]["score"] > paired["baseline"]["score"] and 0 < paired["p_value"] <= 1
    lower = contextpool_says("eval", "--hypotheses", ours, *data, "--lowercase")
    bleu = sacrebleu.metrics.BLEU(lowercase=True)
    assert f"= {bleu.corpus_score(hypotheses, references).score:.2f} " in lower.splitlines()[0]
    assert "case:lc" in lower


def test_every_line_has_its_translation_in_order(run: Path) -> None:
    names = ["one", "two hundred", "", "   ", "three thousand and five", "ninety-nine"] * 3
    lines = "\n".join(names).encode()  # the last without a line feed
    done = translate("--run", run, "--batch", 4, lines=lines)
    assert done.returncode == 0, done.stderr
    out = done.stdout.decode().split("\n")
    assert out.pop() == "" and len(out) == len(names)
    assert all(bool(line) <= bool(name.strip()) for name, line in zip(names, out, strict=True))
    assert out[:6] == out[6:12] == out[12:], "neither place nor batch changes a translation"
    assert translate("--run", run, "--batch", 1, lines=lines).stdout == done.stdout
    best = translate("--run", run, "--n-best", 2, "--beam", 3, lines=b"one\n\n").stdout.decode().splitlines()
    assert [line.split(" ||| ")[0] for line in best] == ["0", "0", "1"]
    scores = [float(line.split(" ||| ")[2]) for line in best]
    assert scores[0] >= scores[1]
    assert translate("--run", run, lines=b"").stdout == b""


def test_a_line_is_answered_before_the_next_is_asked(run: Path) -> None:
    command = [str(PROGRAM), "translate", "--run", str(run), "--device", "cpu", "--beam", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for _ in range(2):
            process.stdin.write(b"seven\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
        assert process.wait() == 0


def test_hostile_lines_are_translated_with_a_warning_and_none_is_lost(run: Path) -> None:
    lines = [b"one", b"\xff\xfe two", "x" * 100_000, "sieben 漢字 \U0001f600".encode(), b"a\x00b", b"\r", b"three"]
    sent = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n"
    done = translate("--run", run, "--beam", 1, "--max-length", 64, lines=sent)
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == len(lines)
    warnings = [line for line in done.stderr.decode().splitlines() if ": line " in line]
    assert len(warnings) == 2
    assert "line 2: is not UTF-8" in warnings[0] and "line 3: has more than 64 tokens" in warnings[1]


def test_a_broken_pipe_ends_quietly(run: Path) -> None:
    command = [str(PROGRAM), "translate", "--run", str(run), "--device", "cpu", "--beam", "1", "--batch", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b"one\n" * 8)
        process.stdin.close()
        assert process.wait() == 0
        assert b"rror" not in (said := process.stderr.read()) and said.count(b"\n") == 1, said


def test_python_translates_from_the_file_alone(run: Path) -> None:
    from safetensors import safe_open

    file = run / "checkpoints" / "step-40" / "model.safetensors"
    model = contextpool.models.Translator.load(file)
    with safe_open(str(file), "pt") as opened:
        vocabulary = base64.b64decode(opened.metadata()["contextpool.vocabulary"])
    pieces = sentencepiece.SentencePieceProcessor(model_proto=vocabulary)
    sentences = ["twenty-one", "four hundred and six", "one million"]
    sources = [[*pieces.encode(sentence), pieces.eos_id()] for sentence in sentences]
    found = [pieces.decode(best[0].tokens) for best in model.translate(sources)]
    program = translate("--checkpoint", file, lines="\n".join(sentences).encode())
    assert program.stdout.decode().splitlines() == found


def test_average_is_the_mean_of_the_last_checkpoints(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "mean.safetensors"
    contextpool_says("average", "--run", run, "--last", 3, "--out", out)
    parts = [load_file(run / "checkpoints" / f"step-{step}" / "model.safetensors") for step in (20, 30, 40)]
    mean = load_file(out)
    assert mean.keys() == parts[0].keys()
    for name, tensor in mean.items():
        expected = torch.stack([part[name].double() for part in parts]).mean(0)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-8)
    assert translate("--checkpoint", out, lines=b"one\n").returncode == 0
    assert " checkpoints, not 9" in said_of(call("average", "--run", run, "--last", 9, "--out", out))
    other = tmp_path / "other"
    contextpool_says(
        "train", "--run", other, *TINY, *NUMBERS, *SHORT, "--steps", 1, "--eval-sentences", 0, "--vocabulary-size", 81
    )
    files = [path / "checkpoints" / step / "model.safetensors" for path, step in ((run, "step-40"), (other, "step-1"))]
    assert "not a checkpoint of the same model" in said_of(call("average", *files, "--out", tmp_path / "no"))
    assert not (tmp_path / "no").exists()


def test_tokenize_makes_and_applies_vocabularies(tmp_path: Path) -> None:
    english = ["one hundred and five", "twenty-one", "", "three thousand and seven"] * 5
    german = ["einhundertfünf", "einundzwanzig", "leer", "dreitausendsieben"] * 5
    source, target, out = tmp_path / "en.gz", tmp_path / "de", tmp_path / "out"
    source.write_bytes(gzip.compress("".join(line + "\n" for line in english).encode()))
    target.write_text("".join(line + "\n" for line in german))
    flags = ["--data", source, "--target", target, "--size", 45]
    said = contextpool_says("data", "tokenize", *flags, "--out", out)
    assert "20 lines, 15 kept; dropped: 5 empty (lines 3, 7" in said and " 0 unknown" in said
    assert len((out / "source.txt").read_text().splitlines()) == 15
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "vocabulary.model"))
    assert (out / "target.txt").read_text().splitlines()[0] == " ".join(pieces.encode(german[0], out_type=str))

    apply = [str(PROGRAM), "data", "tokenize", "--vocabulary", str(out / "vocabulary.model")]
    text = "twenty-one\n\neinhundertfünf\n"
    numbers = subprocess.run([*apply, "--numbers"], input=text, capture_output=True, text=True, check=True).stdout
    assert [[int(n) for n in line.split()] for line in numbers.splitlines()] == [
        pieces.encode(line) for line in text.splitlines()
    ]
    assert subprocess.run([*apply, "--decode"], input=numbers, capture_output=True, text=True).stdout == text
    decode = subprocess.run([*apply, "--decode"], input=numbers + "1\n99999\n5\n", capture_output=True, text=True)
    assert decode.returncode == 1 and decode.stdout == text + "\n"
    assert 'standard input: line 5: "99999" is not the number of a piece' in decode.stderr
    for wrong, expected in (
        (["--size", 0], "a vocabulary of 0 pieces"),
        (["--kind", "word"], 'type is "word"'),
        (["--coverage", "nan"], "coverage nan"),
        (["--out", source], "is not a folder"),
    ):
        done = call("data", "tokenize", *flags, "--out", tmp_path / "none", *wrong)
        assert expected in said_of(done) and done.returncode == 2 and not (tmp_path / "none").exists()
    contextpool_says("data", "tokenize", *flags, "--size", 25, "--joint=false", "--kind", "unigram", "--out", out)
    assert (out / "source.model").exists() and (out / "target.model").exists()
    contextpool_says(
        *("train", "--run", tmp_path / "run", *TINY, "--data", source, "--target", target, "--steps", 1, *SHORT),
        *("--source-vocabulary", out / "source.model", "--vocabulary", out / "target.model"),
    )


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"source": b"a\nb\n", "target": b"A\n"}, "source has 2 lines, but"),
        ({"source": b"a\nb\n"}, "target"),
        ({"source": b"", "target": b"A\n"}, "source"),
        ({"source": b"\xff\n", "target": b"A\n"}, "1 not UTF-8"),
        ({"source": b"x" * 100_000 + b"\n", "target": b"A\n"}, "1 too long"),
    ],
)
def test_bad_texts_are_refused_in_one_line(tmp_path: Path, files: dict[str, bytes], expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    data = ["--data", tmp_path / "source", "--target", tmp_path / "target"]
    assert expected in said_of(call("train", "--run", tmp_path / "run", *TINY, *data, *SHORT))
    assert not (tmp_path / "run").exists()


def test_wrong_commands_say_what_is_wrong(run: Path, tmp_path: Path, text: Path) -> None:
    train = ["train", "--run", tmp_path / "run", *TINY, *NUMBERS]
    assert "padded tokens of a step" in said_of(call(*train, "--batch", 16))
    assert "padded tokens of a step" in said_of(call(*train, "--batch", 200, "--accumulate", 2))
    assert "vocabulary-kind" in said_of(call(*train, *SHORT, "--vocabulary-kind", "words"))
    assert "80" in said_of(call("train", "--run", run, "--resume", "--vocabulary-size", 90))
    wrong = tmp_path / "wrong.model"
    wrong.write_bytes(b"no vocabulary")
    assert str(wrong) in said_of(call(*train, *SHORT, "--vocabulary", wrong))
    for flags, expected in (
        (["--eval-beam", 5000], "eval-beam is 5000, expected 1 to 4096"),
        (["--accumulate", 2**62], "accumulate is 4611686018427387904, but a batch has only 1500 tokens"),
        (["--numbers", 2**62], "numbers is 4611686018427387904, expected 1 to 1000000"),
        (["--dev-target", text], "the translations of dev-source: give both"),
        (["--target", text], "leave --target and --dev-source out"),
        (["--source-vocabulary", wrong], "name the target's with --vocabulary"),
    ):
        done = call(*train, *SHORT, *flags)
        assert expected in said_of(done) and done.returncode == 2
    done = call("translate", "--run", run, "--extra-length", 2**63 - 1)
    assert "extra_length must be from 1 to 1000000" in said_of(done) and done.returncode == 2
    assert "Is a directory" in said_of(call("eval", "--run", run, "--output", tmp_path))
    assert "has not two columns" in said_of(call("eval", "--run", run, "--data", text))
    short = tmp_path / "short"
    short.write_text("eins\n")
    assert "has 1 lines, but" in said_of(call("eval", "--data", "numbers-de", "--hypotheses", short))
    language_model = tmp_path / "lm"
    small = ["--layers", 1, "--features", 16, "--heads", 2, "--feedforward", 32, "--length", 32, "--batch", 2]
    contextpool_says("train", "--run", language_model, "--model", "tiny", "--data", text, "--steps", 1, *small)
    assert 'expected a "translator"' in said_of(call("translate", "--run", language_model))
