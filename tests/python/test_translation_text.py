"""The text side of translation beside packages that others wrote: gzip, num2words and SentencePiece's own for Python."""

import gzip
import importlib.util
import json
import os
import random
import subprocess
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [folder / "shared/data/multi30k" for folder in ROOT.parents]
MULTI30K = Path(os.environ.get("CONTEXTPOOL_MULTI30K", next((f for f in FOLDERS if f.exists()), FOLDERS[0])))


def call(*args: object) -> subprocess.CompletedProcess:
    """tests/data/translation_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    command = [str(build / "tests" / "contextpool_translation_tool"), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "built without" in done.stderr:
        pytest.skip(done.stderr)
    return done


def tool(*args: object) -> str:
    done = call(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*args: object) -> str:
    done = call(*args)
    assert done.returncode == 1, (args, done)
    return done.stderr


# Numbers that show every rule, then many others.
NUMBERS = [*range(0, 2200), *range(2200, 1_000_001, 251), 80_000, 200_000, 280_000, 999_999, 1_000_000]


@pytest.mark.parametrize("language", ("en", "de", "fr"))
def test_number_names_are_those_of_num2words(language: str) -> None:
    num2words = pytest.importorskip("num2words").num2words
    ours = tool("names", language, 0, 1_000_001).split("\n")
    assert len(set(ours)) == 1_000_002  # all different, and the empty one after the last
    for number in NUMBERS:
        theirs = num2words(number, lang=language)
        if language == "en":
            theirs = theirs.replace(",", "")
        if language == "de":  # num2words 0.5.14 has "einhunderteinstausend", where German has "einhunderteintausend"
            theirs = theirs.replace("einstausend", "eintausend")
        assert ours[number] == theirs, number


def test_splits_of_numbers_are_fixed_for_ever() -> None:
    """A trained model's held-out numbers must stay held out in later versions."""
    splits = tool("splits", 0, 100_000).split()
    assert [splits.count(s) for s in ("train", "dev", "test")] == [90_019, 4922, 5059]
    assert [n for n, s in enumerate(splits[:300]) if s == "test"] == [146, 156, 170, 196, 227, 232, 259, 267, 291]


def some_text(seed: int, lines: int) -> list[str]:
    chance = random.Random(seed)
    words = ("ein", "Mann", "läuft", "über", "die", "große", "Straße", "12", ",", ".", "«", "»", "😀", "naïve", "ﬁn", "€", "Œuvre")
    return [" ".join(chance.choices(words, k=chance.randrange(1, 12))) for _ in range(lines)]


def write(path: Path, text: str | bytes, packed: bool = False) -> Path:
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


@pytest.mark.parametrize("end", ("\n", "\r\n"))
@pytest.mark.parametrize("mark", ("", "\ufeff"))
@pytest.mark.parametrize("packed", (False, True))
def test_pairs_are_read_however_they_are_packed(tmp_path: Path, end: str, mark: str, packed: bool) -> None:
    ours, theirs = some_text(1, 5000), some_text(2, 5000)
    ours[17] = theirs[18] = ""
    source = write(tmp_path / "s", mark + end.join(ours) + end, packed)
    target = write(tmp_path / "t", mark + end.join(theirs), packed)
    tsv = write(tmp_path / "tsv", mark + end.join(f"{a}\t{b}" for a, b in zip(ours, theirs)), packed)
    first, second = json.loads(tool("read", source, target)), json.loads(tool("read", tsv, "-"))
    want = [[a, b, k] for k, (a, b) in enumerate(zip(ours, theirs), 1) if a and b]
    assert first == second and first["pairs"] == want
    assert first["empty"] == {"count": 2, "lines": [18, 19]} and first["lines"] == 5000


def test_bad_pairs_are_dropped_and_bad_files_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good", "a\nb\nc\nd\n")
    bad = write(tmp_path / "bad", b"A\n\xff\xfe\n" + b"x" * 100_000 + b"\n\n")
    answer = json.loads(tool("read", good, bad))
    assert answer["text"] == "4 lines, 1 kept; dropped: 1 empty (line 4), 1 not UTF-8 (line 2), 1 too long (line 3)"
    assert len(json.loads(tool("read", good, bad, 0))["pairs"]) == 2
    short, empty = write(tmp_path / "short", "a\nb\n"), write(tmp_path / "empty", "")
    assert f"{good} has 4 lines, but {short} has 2" in refused("read", good, short)
    assert f"{empty}: is empty" in refused("read", empty, good)
    assert f"{tmp_path / 'none'}: cannot open: No such file" in refused("read", good, tmp_path / "none")
    assert "UTF-16" in refused("read", write(tmp_path / "wide", "a\nb\n".encode("utf-16")), short)
    whole = gzip.compress("\n".join(some_text(3, 1000)).encode())
    assert "cut off" in refused("read", write(tmp_path / "cut.gz", whole[:-20]), good)
    assert "damaged" in refused("read", write(tmp_path / "flipped.gz", whole[:300] + b"\0" * 9 + whole[309:]), good)
    assert "line 2 of 4 has 1 columns" in refused("read", write(tmp_path / "tsv", "a\tb\nb\nc\td\n\n"), "-")


@pytest.mark.parametrize("kind,fallback", (("bpe", 0), ("bpe", 1), ("unigram", 0), ("unigram", 1)))
def test_vocabularies_are_read_by_sentencepiece_itself(tmp_path: Path, kind: str, fallback: int) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    source = write(tmp_path / "s", "\n".join(some_text(1, 500)))
    target = write(tmp_path / "t", "\n".join(some_text(2, 500)))
    for name in ("one", "two"):
        tool("train", source, target, kind, 315 if fallback else 60, fallback, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "one"))
    assert [theirs.pad_id(), theirs.eos_id(), theirs.bos_id(), theirs.unk_id()] == [0, 1, 2, 3]
    lines = some_text(4, 300) + ["漢字 und Straße", "\u00a0a\u3000 b\u0301", "①②", "</s>", "👩‍👩‍👧", "x" * 100_000]
    sentences = write(tmp_path / "sentences", "\n".join(lines))
    symbols = [json.loads(line) for line in tool("encode", tmp_path / "one", sentences).splitlines()]
    assert symbols == [theirs.encode(line) for line in lines]
    decoded = tool("decode", tmp_path / "one", sentences).split("\n")[:-1]
    assert decoded == [theirs.decode(s) for s in symbols]
    for line, round_trip in zip(lines, decoded):
        if fallback or 3 not in theirs.encode(line):
            # The difference between nmt_nfkc and NFKC is in control characters and a few spaces, which are not here.
            assert round_trip == " ".join(unicodedata.normalize("NFKC", line).split()), line


def test_batches_of_multi30k(tmp_path: Path) -> None:
    """Every pair once an epoch and less than 5 per cent of padding, on the real text."""
    if not MULTI30K.exists():
        pytest.skip("Multi30k is not here; CONTEXTPOOL_MULTI30K names its folder")
    source, target, model = MULTI30K / "train.en.gz", MULTI30K / "train.de.gz", tmp_path / "model"
    tool("train", source, target, "bpe", 10_000, 0, model)
    first = json.loads(tool("batches", source, target, model, 4096, 1, 240))
    assert first["report"]["text"] == "29000 lines, 29000 kept" and first["padding"] < 0.05
    count = first["per_epoch"]
    for epoch in range(2):
        batches = first["batches"][epoch * count : (epoch + 1) * count]
        assert sorted(i for batch in batches for i in batch) == list(range(29_000))
    assert first["batches"][:count] != first["batches"][count : 2 * count]
    held = MULTI30K / "test_2016_flickr.de.gz"
    lines = gzip.decompress(held.read_bytes()).decode().split("\n")[:-1]
    decoded = tool("decode", model, held).split("\n")[:-1]
    same = [a == " ".join(unicodedata.normalize("NFKC", b).split()) for a, b in zip(decoded, lines)]
    assert len(decoded) == 1000 and sum(same) >= 998, [p for p, s in zip(zip(decoded, lines), same) if not s]
