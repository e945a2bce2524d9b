"""BLEU, chrF and paired bootstrap resampling beside the sacrebleu package, over real and hostile texts.

Real text is Multi30k's, where its folder is (CONTEXTPOOL_MULTI30K), else sentences made here.
"""

import gzip
import importlib.util
import itertools
import json
import os
import random
import re
import subprocess
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

sacrebleu = pytest.importorskip("sacrebleu")
regex = pytest.importorskip("regex")
from sacrebleu.metrics import BLEU, CHRF  # noqa: E402
from sacrebleu.significance import PairedTest  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [folder / "shared/data/multi30k" for folder in ROOT.parents]
MULTI30K = Path(os.environ.get("CONTEXTPOOL_MULTI30K", next((f for f in FOLDERS if f.exists()), FOLDERS[0])))
TOKENIZERS = ("13a", "intl", "char", "none")


def ask(*requests: Sequence[object]) -> list:
    """Answers of tests/eval/eval_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    lines = "".join("\t".join(map(str, request)) + "\n" for request in requests)
    done = subprocess.run([build / "tests/contextpool_eval_tool"], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(requests)
    return answers


def write(path: Path, sentences: Sequence[str | bytes]) -> Path:
    path.write_bytes(b"\0".join(s if isinstance(s, bytes) else s.encode() for s in sentences))
    return path


def perturbed(sentences: Sequence[str], seed: int, share: float) -> list[str]:
    """What a translator might have made of them: words lost, doubled, swapped, changed and in another case."""
    chance, words = random.Random(seed), [w for s in sentences for w in s.split()] or ["x"]
    result = []
    for sentence in sentences:
        new = []
        for word in sentence.split(" "):
            if chance.random() > share:
                new.append(word)
                continue
            new += chance.choice(([], [word, word], [chance.choice(words)], [word.swapcase()], [word[::-1]]))
        if len(new) > 2 and chance.random() < share:
            k = chance.randrange(len(new) - 1)
            new[k], new[k + 1] = new[k + 1], new[k]
        result.append(" ".join(new))
    return result


@pytest.fixture(scope="session")
def real() -> list[str]:
    path = MULTI30K / "test_2016_flickr.de.gz"
    if path.exists():
        return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]
    pieces = ("Ein Mann", "läuft", "mit 1.000,50 Euro", "über die Straße,", "(bei Nacht)", "„so schnell“", "er kann.")
    chance = random.Random(3)
    return [" ".join(chance.choices(pieces, k=chance.randrange(3, 9))) for _ in range(500)]


def hostile() -> list[str | bytes]:
    """Sentences that real files hold now and then, and some that they should not."""
    by_hand: list[str | bytes] = [
        "", " ", "\t \u00a0", ".", "...", "?!.,;:", "-", "--", "'", "''\"\"", "(hi)", "<skipped>", "a<skipped>b", "-\n", "a-\nb\nc",
        "&quot;&amp;quot;&lt;&gt;&", "1,000,000.00", "1.", ".5", "1.2.3", "3,4-5", "10-20", "a-1", "1-a", "5.-", "5,a", ".,.,", "1 000",
        "1\u00a0000\u202f000", "x\u00a0y\u2003z\u3000w\u1680v", "\u200b\u2060\ufeffa", "\x1c\x1d\x1e\x1fa\x85b\x0bc", "a\u2028b\u2029c",
        "\r", "a\r", "😀", "👩‍👩‍👧‍👦 family 🇩🇪", "a😀.b", "שלום, עולם!", "مرحبا بالعالم؟ ١٢٣٬٤٥٦", "\u202eabc\u202c.", "e\u0301.e\u0301", "Z̸̡̝a̵l̴g̷o̶",
        "½.½ ²,³ Ⅷ.Ⅷ", "٣.٣", "5€", "$5.00", "a+b=c", "©2020®", "…", "„So“ «dort» ‹hier›", "我爱你。", "日本語、テスト", "ÄÖÜẞ", "İSTANBUL",
        "ΌΣΟΣ ΣΑΣ Σ", "ΑΣ.Σ Α\u0301Σ\u0301", "ǅ ǆ Ǆ", "ﬀ ŉ", "\U0001e921", "𝐀𝐁", "\u0378", "\U0010ffff", "\ufffe", "\u20c1\U0001fae9 \u1b4e",
        b"\xff", b"a\xffb.", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82\xac\xe2\x28\xa1", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80",
        b"\xc0\x80", b"\xf8\x88\x80\x80\x80", b"ok \x80\x80.\xbf,",
    ]  # fmt: skip
    chance = random.Random(5)
    letters = " .,-'\"<>&;1234567890aAäÄßΣσςİ\u00a0\u0301😀€«»١½²我ש\n\t"
    by_hand += ["".join(chance.choices(letters, k=chance.randrange(60))) for _ in range(300)]
    by_hand.append(" ".join(chance.choices(("a", "b.", "1,5", "ccc", "Ä"), k=10_000)))
    by_hand.append("".join(chance.choices("abc.,1", k=10_000)))
    return by_hand


def decoded(sentences: Sequence[str | bytes]) -> list[str]:
    return [s.decode("utf-8", "replace") if isinstance(s, bytes) else s for s in sentences]


def close(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= 1e-6


def compare(metric: object, answer: dict, hypotheses: list[str], references: list[list[str]]) -> None:
    """The corpus, then every sentence by itself."""
    assert "error" not in answer, answer
    score = metric.corpus_score(hypotheses, references)
    assert close(answer["score"], score.score), (answer["score"], score)
    assert answer["signature"] == str(metric.get_signature())
    text = score.format(signature=str(metric.get_signature()))
    if isinstance(metric, BLEU):
        assert text == f"{answer['name']}|{answer['signature']} = {answer['score']:.2f} {answer['details']}"
    else:
        assert text == f"{answer['name']}|{answer['signature']} = {answer['score']:.2f}"
    for k, hypothesis in enumerate(hypotheses):
        theirs = metric.sentence_score(hypothesis, [r[k] for r in references]).score
        assert close(answer["sentences"][k], theirs), (hypothesis, [r[k] for r in references], theirs)


def bleu_cases() -> list[tuple[str, dict]]:
    cases = []
    for tokenizer, lowercase in itertools.product(TOKENIZERS, (False, True)):
        cases.append((f"tokenizer={tokenizer};lowercase={int(lowercase)}", {"tokenize": tokenizer, "lowercase": lowercase}))
    for smoothing, value, effective in itertools.product(("exp", "floor", "add-k", "none"), (None, 0.25), (False, True)):
        words = f"smoothing={smoothing};effective={int(effective)}" + (f";value={value}" if value else "")
        options = {"smooth_method": smoothing, "smooth_value": value, "effective_order": effective}
        cases.append((words, options))
    cases += [(f"order={n};effective=1", {"max_ngram_order": n, "effective_order": True}) for n in (1, 2, 7)]
    return cases


def chrf_cases() -> list[tuple[str, dict]]:
    switches = itertools.product((0, 1, 2), (False, True), (False, True), (False, True))
    cases = [
        (f"words={w};lowercase={int(l)};whitespace={int(s)};eps={int(e)}",
         {"word_order": w, "lowercase": l, "whitespace": s, "eps_smoothing": e}) for w, l, s, e in switches
    ]  # fmt: skip
    return [*cases, ("chars=3;beta=1", {"char_order": 3, "beta": 1}), ("chars=0;words=3", {"char_order": 0, "word_order": 3})]


@pytest.mark.parametrize("kind", ("bleu", "chrf"))
@pytest.mark.parametrize("count", (1, 3))
def test_scores_of_real_text_are_sacrebleus(tmp_path: Path, real: list[str], kind: str, count: int) -> None:
    hypotheses = perturbed(real, 1, 0.3)[:150]
    references = [real[:150], *(perturbed(real, seed, 0.2)[:150] for seed in (2, 3))][:count]
    files = [write(tmp_path / "hypotheses", hypotheses), *(write(tmp_path / f"r{k}", r) for k, r in enumerate(references))]
    cases, make = (bleu_cases(), BLEU) if kind == "bleu" else (chrf_cases(), CHRF)
    if count > 1:
        cases = cases[::3]
    for (_, options), answer in zip(cases, ask(*((kind, words, *files) for words, _ in cases))):
        compare(make(**options), answer, hypotheses, references)


def test_scores_of_a_whole_test_set_are_sacrebleus(tmp_path: Path, real: list[str]) -> None:
    for share in (0.05, 0.6):
        hypotheses = perturbed(real, 4, share)
        files = write(tmp_path / "hypotheses", hypotheses), write(tmp_path / "references", real)
        requests = [("bleu", f"tokenizer={t};lowercase={l}", *files) for t in ("13a", "intl") for l in (0, 1)]
        for request, answer in zip(requests, ask(*requests)):
            metric = BLEU(tokenize=request[1].split("=")[1].split(";")[0], lowercase=request[1].endswith("1"))
            assert close(answer["score"], metric.corpus_score(hypotheses, [real]).score)
        (answer,) = ask(("chrf", "words=2", *files))
        assert close(answer["score"], CHRF(word_order=2).corpus_score(hypotheses, [real]).score)


@pytest.mark.parametrize("kind", ("bleu", "chrf"))
def test_scores_of_hostile_text_are_sacrebleus(tmp_path: Path, kind: str) -> None:
    texts = hostile()
    chance = random.Random(9)
    # Each against itself and against another, the two long ones last.
    hypotheses = texts + texts[:-2]
    references = texts + chance.sample(texts[:-2], len(texts) - 2)
    files = write(tmp_path / "hypotheses", hypotheses), write(tmp_path / "references", references)
    cases, make = (bleu_cases(), BLEU) if kind == "bleu" else (chrf_cases()[::5], CHRF)
    for (_, options), answer in zip(cases, ask(*((kind, words, *files) for words, _ in cases))):
        compare(make(**options), answer, decoded(hypotheses), [decoded(references)])


def every_character() -> list[str]:
    return [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


# Python 3.11's letters and regex' categories are those of the tables (scripts/unicode_tables.py); others know others.
same_unicode = pytest.mark.skipif(
    unicodedata.unidata_version != "14.0.0" or regex.match(r"\p{S}", "\u20c1") is None,
    reason="this Python or its package regex has another Unicode than the tables",
)


@same_unicode
def test_all_of_unicode_is_tokenized_as_sacrebleu_does(tmp_path: Path) -> None:
    """Every character among letters and digits: the same number of tokens, and they match what sacreBLEU makes of them."""
    characters = every_character()
    lines = ["".join(f"a{c}b 1{c}2 {c} " for c in characters[k : k + 1000]) + "a" for k in range(0, len(characters), 1000)]
    tokenized = [BLEU(tokenize="intl").tokenizer(line.rstrip()) for line in lines]
    files = write(tmp_path / "lines", lines), write(tmp_path / "tokenized", tokenized)
    # Neither text is changed by another round: it is only set beside the tokens that sacreBLEU found, by spaces alone.
    (ours,) = ask(("bleu", "tokenizer=intl;order=2", *files))
    (theirs,) = ask(("bleu", "tokenizer=none;order=2", files[1], files[1]))
    assert ours["counts"][:2] == theirs["counts"][:2]
    wrong = [k for k, score in enumerate(ours["sentences"]) if score < 100 - 1e-9]
    assert not wrong, [hex(ord(characters[1000 * k])) for k in wrong]


@same_unicode
def test_all_of_unicode_is_lower_cased_as_python_does(tmp_path: Path) -> None:
    characters = [c for c in every_character() if not c.isspace()]
    lines = [" ".join(characters[k : k + 1000]) for k in range(0, len(characters), 1000)]
    lines += [f"{c}Σ AΣ{c} A{c}Σ AΣ{c}B" for c in characters]
    files = write(tmp_path / "lines", lines), write(tmp_path / "lower", [line.lower() for line in lines])
    (answer,) = ask(("bleu", "tokenizer=none;lowercase=1;order=1", *files))
    wrong = [lines[k][:8] for k, score in enumerate(answer["sentences"]) if score < 100 - 1e-9]
    assert not wrong, wrong[:20]


def test_resamples_are_those_that_numpy_draws() -> None:
    cases = [(1, 3, 12345), (2, 5, 0), (1000, 20, 12345), (7, 11, 2**40 + 5), (30_001, 3, 1)]
    for case, answer in zip(cases, ask(*(("indices", *case) for case in cases))):
        sentences, samples, seed = case
        theirs = np.random.default_rng(seed).choice(sentences, size=(samples, sentences), replace=True)
        assert answer == theirs.reshape(-1).tolist(), case


@pytest.mark.parametrize("kind", ("bleu", "chrf"))
def test_paired_bootstrap_is_sacrebleus(tmp_path: Path, real: list[str], kind: str) -> None:
    references, samples = real[:200], 300
    systems = {"same": (0.30, 0.30), "better": (0.40, 0.30), "much better": (0.5, 0.1)}
    for name, (a, b) in systems.items():
        baseline, system = perturbed(references, 1, a), perturbed(references, 2, b)
        files = [write(tmp_path / n, s) for n, s in (("a", baseline), ("b", system), ("r", references))]
        metric = BLEU() if kind == "bleu" else CHRF()
        theirs = PairedTest([("a", baseline), ("b", system)], {kind: metric}, [references], "bs", samples)
        signatures, scores = theirs()
        (signature,) = signatures.values()
        (results,) = (value for key, value in scores.items() if key != "System")

        # With their resamples, given as numbers, and every score in float64.
        indices = np.random.default_rng(12345).choice(200, size=(samples, 200), replace=True)
        numbers = tmp_path / "indices"
        numbers.write_text(" ".join(map(str, indices.reshape(-1))))
        ours, given = ask(("paired", kind, "", samples, 12345, *files), ("given", kind, "", numbers, *files))
        exact = []
        for hypotheses in (baseline, system):
            counts = np.array(metric._extract_corpus_statistics(hypotheses, [references]), dtype="float64")
            exact.append(np.array([metric._compute_score_from_stats(counts[row].sum(0)).score for row in indices]))
        for side, values in zip(("baseline", "system"), exact):
            low = samples // 40
            spread = np.sort(values)
            want = (values.mean(), 0.5 * (spread[samples - low - 1] - spread[low]))
            assert np.allclose(ours[side][1:], want, atol=1e-6, rtol=0) and ours[side] == given[side]
        difference = abs(results[0].score - results[1].score)
        apart = np.abs(exact[1] - exact[0])
        assert ours["p"] == given["p"] == (1 + int((apart - apart.mean() > difference).sum())) / (samples + 1)

        # As the package reports it: with numpy 2 its resampled scores are in float32.
        assert ours["signature"] == str(signature)
        for side, result in zip(("baseline", "system"), results):
            assert close(ours[side][0], result.score)
            assert np.allclose(ours[side][1:], (result.mean, result.ci), atol=1e-4, rtol=0), name
        assert abs(ours["p"] - results[1].p_value) <= 1.5 / (samples + 1), name


def test_the_signature_of_a_released_package_is_the_one_we_print(tmp_path: Path) -> None:
    (answer,) = ask(("bleu", "", write(tmp_path / "a", ["x"]), tmp_path / "a"))
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:[0-9.]+", answer["signature"])
    assert answer["signature"].endswith(f"version:{sacrebleu.__version__}")


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", ["a"]), write(tmp_path / "two", ["a", "b"])
    answers = ask(("bleu", "", one, two), ("bleu", "tokenizer=14a", one, one), ("chrf", "beta=0", one, one), ("bleu", "", one))
    for answer, words in zip(answers, ("reference 1 has 2", "tokenizer", "beta 0", "at least one reference")):
        assert words in answer["error"], answer
