"""The translator in Python and in C++ is one model: weights travel both ways through safetensors and give the same
logits and translations. Beam search against a search through every translation; steps, padding, options, training."""

import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contextpool.models import BeamSearchOptions, Hypothesis, Translator, TranslatorOptions, label_smoothed_loss
from contextpool.models.beam_search import BeamDecoder, beam_search
from program import ROOT

pytest.importorskip("safetensors")
from safetensors import safe_open
from safetensors.torch import load_file, save_file

SYMBOLS = 23
SMALL = {
    "vocabulary": SYMBOLS, "layers": 2, "features": 16, "heads": 2, "feedforward": 32, "length": 80, "area_width": 3,
    "taps": 5, "pool_reference_length": 16, "pool_hidden": 8,
}  # fmt: skip
CASES = (
    {},
    {"mixer": "context_pool"},
    {"mixer": "depthwise", "positions": "learned", "tied": False},
    {"encoder_attention": "local,area", "decoder_attention": "area,local", "cross_attention": "area,local"},
)


def tool(verb: str, folder: Path) -> None:
    """Runs tests/models/translators_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    command = [str(build / "tests" / "contextpool_translators_tool"), verb, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def expect_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5 * max(1.0, expected.abs().max().item()))


def random_model(options: dict) -> Translator:
    model = Translator.from_options({**SMALL, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3).add_(0 if parameter.dim() > 1 else 0.5)
    return model


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native")
    tool("write", folder)
    return folder


def model_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.safetensors") if "." not in p.stem)


@torch.no_grad()
def test_models_written_by_cpp_say_and_translate_the_same_here(native: Path) -> None:
    files = model_files(native)
    assert len(files) > 20
    for file in files:
        said = load_file(native / f"{file.stem}.logits.safetensors")
        model = Translator.load(file)
        expect_close(model(said["source"], said["target"], mask=said["real"]), said["logits"])
        sources = [row[real].tolist() for row, real in zip(said["source"], said["real"], strict=True)]
        found = list(itertools.chain(*model.translate(sources, BeamSearchOptions(n_best=2, extra_length=6))))
        symbols = [symbol for hypothesis in found for symbol in (*hypothesis.tokens, model.options.end)]
        assert symbols == said["symbols"].tolist(), file.stem
        assert [h.score for h in found] == pytest.approx(said["scores"].tolist(), abs=1e-4)


@torch.no_grad()
def test_models_written_here_say_the_same_in_cpp(native: Path, tmp_path: Path) -> None:
    torch.manual_seed(4)
    expected = {}
    for file in model_files(native):
        with safe_open(str(file), "pt") as opened:
            options = json.loads(opened.metadata()["contextpool.model"])
        assert set(options) == set(vars(TranslatorOptions()))
        model = random_model(options)
        assert vars(model.options) == options
        source, target = torch.randint(0, SYMBOLS, (2, 9)), torch.randint(0, SYMBOLS, (2, 12))
        real = torch.arange(9) < torch.tensor([[9], [5]])
        save_file(model.state_dict(), tmp_path / file.name, {"contextpool.model": json.dumps(options)})
        save_file({"source": source, "real": real, "target": target}, tmp_path / f"{file.stem}.tokens.safetensors")
        expected[file.stem] = model(source, target, mask=real)
    tool("read", tmp_path)
    for name, logits in expected.items():
        expect_close(load_file(tmp_path / f"{name}.logits.safetensors")["logits"], logits)


@torch.no_grad()
@pytest.mark.parametrize("options", CASES)
def test_steps_equal_the_whole_and_padding_changes_nothing(options: dict) -> None:
    torch.manual_seed(5)
    model = random_model(options).double()
    source, target = torch.randint(0, SYMBOLS, (3, 9)), torch.randint(0, SYMBOLS, (3, 15))
    lengths = torch.tensor([9, 4, 1])
    whole, encoded = model(source, target, lengths), model.encode(source, lengths)
    cache, parts = model.start(encoded), []
    for part in target.split((1, 1, 8, 1, 4), 1):
        parts.append(model.step(part, cache))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-11)
    cache.crop(7)
    cache.repeat(2)
    cache.reorder(torch.tensor([1, 0, 5, 4]), torch.tensor([0, 2]))
    rows = torch.tensor([0, 0, 2, 2])
    torch.testing.assert_close(model.step(target[rows, 7:], cache), whole[rows, 7:], rtol=0, atol=1e-11)
    for b, length in enumerate(lengths.tolist()):
        alone = model(source[b : b + 1, :length], target[b : b + 1])
        torch.testing.assert_close(alone, whole[b : b + 1], rtol=0, atol=1e-11)
    target[:, 9] = (target[:, 9] + 3) % SYMBOLS
    assert torch.equal(model(source, target, lengths)[:, :9], whole[:, :9])


@pytest.mark.parametrize("options", CASES)
def test_cached_uncached_and_lone_translations_agree_and_scores_are_sums(options: dict) -> None:
    torch.manual_seed(6)
    model = random_model(options)
    sources = [[3, 9, 4, 11, 7], [5], [], [8, 8, 3, 20, 6, 4, 3, 3]]
    how = BeamSearchOptions(n_best=3, extra_length=8)
    cached = model.translate(sources, how)
    uncached = model.translate(sources, BeamSearchOptions(n_best=3, extra_length=8, cached=False))
    for source, found, without_cache in zip(sources, cached, uncached, strict=True):
        (alone,) = model.translate([source], how)
        assert [h.tokens for h in found] == [h.tokens for h in without_cache] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in without_cache], abs=1e-4)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        for hypothesis in found if source else ():
            target = torch.tensor([[model.options.begin, *hypothesis.tokens]])
            logs = model(torch.tensor([source]), target)[0].log_softmax(-1)
            ended = [*hypothesis.tokens, model.options.end]
            total = sum(logs[i, symbol].item() for i, symbol in enumerate(ended))
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-4)
            assert hypothesis.score == pytest.approx(total / ((5 + len(ended)) / 6) ** 0.6, abs=1e-4)


class MadeUp(BeamDecoder):
    """Logits that depend on all symbols before, of 4 symbols."""

    def __init__(self, sentences: list[int], beam: int) -> None:
        self.rows = [(sentence,) for sentence in sentences for _ in range(beam)]

    @staticmethod
    def logits(row: tuple[int, ...]) -> Tensor:
        seed = 0
        for number in row:
            seed = (seed * 1000003 + number + 7) % 2**62
        return 1.5 * torch.randn(4, generator=torch.Generator().manual_seed(seed))

    def step(self, tokens: Tensor) -> Tensor:
        self.rows = [(*row, symbol) for row, symbol in zip(self.rows, tokens.tolist(), strict=True)]
        return torch.stack([self.logits(row) for row in self.rows])

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def exhaustive(sentence: int, longest: int, alpha: float) -> list[Hypothesis]:
    found = []
    for length in range(longest):
        for symbols in itertools.product((0, 2, 3), repeat=length):
            row, log_probability = (sentence, 2), 0.0
            for symbol in (*symbols, 1):
                log_probability += MadeUp.logits(row).double().log_softmax(0)[symbol].item()
                row = (*row, symbol)
            found.append(Hypothesis(list(symbols), log_probability, log_probability / ((6 + length) / 6) ** alpha))
    return sorted(found, key=lambda h: -h.score)


@pytest.mark.parametrize("alpha", (0.0, 0.6, 3.0))
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(alpha: float) -> None:
    options = BeamSearchOptions(beam=81, alpha=alpha, n_best=10)
    found = beam_search(MadeUp([0, 1], 81), [5, 4], 2, 1, options)
    for sentence, longest in ((0, 5), (1, 4)):
        best = exhaustive(sentence, longest, alpha)[:10]
        assert [h.tokens for h in found[sentence]] == [h.tokens for h in best]
        assert [h.score for h in found[sentence]] == pytest.approx([h.score for h in best], abs=1e-5)


class Even(BeamDecoder):
    """Of 4000 symbols the last likelier than the others, which are equals."""

    def step(self, tokens: Tensor) -> Tensor:
        return (torch.arange(4000) == 3999).float().expand(len(tokens), -1)

    def select(self, rows: Tensor, sentences: Tensor | None) -> None:
        pass


def test_equals_are_ranked_by_their_symbols() -> None:
    (found,) = beam_search(Even(), [2], 2, 1, BeamSearchOptions(beam=4, alpha=0.0, n_best=4))
    assert [h.tokens for h in found] == [[], [3999], [0], [2]]


def test_a_beam_of_one_is_greedy() -> None:
    ((found,),) = beam_search(MadeUp([3], 1), [9], 2, 1, BeamSearchOptions(beam=1))
    row = (3, 2)
    while (symbol := MadeUp.logits(row).argmax().item()) != 1 and len(row) < 10:
        row = (*row, symbol)
    assert found.tokens == list(row[2:])


def test_the_loss_is_smoothed_and_leaves_padding_out() -> None:
    logits, targets = torch.randn(2, 3, 5, dtype=torch.float64), torch.tensor([[0, 4, 2], [1, 3, 3]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    logs = logits.log_softmax(-1)
    each = -0.9 * logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - 0.1 * logs.mean(-1)
    torch.testing.assert_close(label_smoothed_loss(logits, targets, 0.1, mask), each[mask].mean())
    with pytest.raises(ValueError, match="label_smoothed_loss: logits must be"):
        label_smoothed_loss(logits, targets[:, 1:])


def test_the_start_is_tensor2tensors() -> None:
    torch.manual_seed(1)
    model = Translator.from_options({**SMALL, "features": 256, "feedforward": 512, "encoder_attention": "local"})
    state = model.state_dict()
    for name, outputs in (
        ("encoder.0.attention.qkv", 256), ("decoder.1.cross_attention.kv", 256), ("decoder.0.feedforward.up", 512)
    ):  # fmt: skip
        bound = math.sqrt(6 / (256 + outputs))
        assert state[f"{name}.weight"].abs().max().item() == pytest.approx(bound, rel=0.01)
        assert not state[f"{name}.bias"].any()
    assert state["token.weight"].std().item() == pytest.approx(1 / 16, rel=0.05)


def test_it_learns_to_reverse() -> None:
    torch.manual_seed(1)
    options = {**SMALL, "vocabulary": 9, "features": 32, "layers": 1, "dropout": 0.0}
    model = Translator.from_options({**options, "attention_dropout": 0.0, "activation_dropout": 0.0})
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    begin, end = torch.full((32, 1), 2), torch.full((32, 1), 1)
    for _ in range(250):
        text = torch.randint(3, 9, (32, 3))
        back = text.flip(1)
        loss = label_smoothed_loss(model(text, torch.cat((begin, back), 1)), torch.cat((back, end), 1))
        adam.zero_grad()
        loss.backward()
        adam.step()
    (found,) = model.translate([[3, 8, 4]])
    assert found[0].tokens == [4, 8, 3]
    assert model.training


def test_the_benchmark_of_decoding_runs() -> None:
    command = ["bench/decode.py", "--all", "--mixer", "context_pool", "--beams", "1", "2"]
    command += ["--batch", "2", "--length", "6", "--vocabulary", "50"]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| beam | cached, s |" in done.stdout


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    def refused(match: str, **options: object) -> None:
        with pytest.raises(ValueError, match=match):
            Translator.from_options({**SMALL, **options})

    refused("layers must be from 1", layers=0)
    refused("end must be one of the 23", end=23)
    refused('did you mean "full"', encoder_attention="ful")
    refused("full, local, area", cross_attention="window")
    refused('did you mean "decoder"', mixer_in="encoder,decodr")
    refused("ABOXCDE", mix="Y=depthwise")
    refused("tied must be of type bool", tied=1)
    refused("layers must be of type int", layers=True)
    refused('did you mean "mixer_in"', mixers_in="encoder")
    model = random_model({})
    with pytest.raises(ValueError, match="the target has 1 rows, but the source has 2"):
        model(torch.zeros(2, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="sentence 1 holds symbol 23"):
        model.translate([[3], [23]])
    for wrong in ({"beam": 0}, {"n_best": 5}, {"alpha": -1.0}, {"alpha": math.nan}, {"extra_length": 0}):
        with pytest.raises(ValueError, match=f"beam search: {next(iter(wrong))} must be"):
            BeamSearchOptions(**wrong)
    assert model.translate([]) == []
    file = tmp_path / "other.safetensors"
    metadata = {"contextpool.family": "language_model", "contextpool.model": json.dumps(SMALL)}
    save_file({"a": torch.zeros(1)}, file, metadata)
    with pytest.raises(ValueError, match="not a checkpoint of a translator, but of a language model"):
        Translator.load(file)
