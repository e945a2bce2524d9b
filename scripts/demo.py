"""`make demo`: three small language models on the same text, without and with local mixers, and what they cost.

Trains a plain transformer, one with canon layers (four taps with a residual, after both norms of a block) and one with
ContextPool in the same places, on the source of Python's standard library, scores each on held-out text, lets the last
one write, and prints one table. Then it shows how far ContextPool looks: the sizes of its windows over a line of
held-out text, by layer, here and on a page.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
MODELS = [("tiny", "plain"), ("canon-tiny", "canon layers"), ("gated-cp-tiny", "gated ContextPool")]
# Threads that wait do not spin: on a machine that is busy otherwise, spinning makes small steps many times slower.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", **os.environ}


@dataclasses.dataclass
class Scale:
    """How much of it: bytes of text, flags of train, tokens that are scored, characters that are written."""

    text: int = 4_000_000
    train: tuple[str, ...] = ()
    score: int = 50_000
    write: int = 300


QUICK = Scale(100_000, ("--steps", "4", "--eval-tokens", "1000"), 1000, 20)


def folder_for(parent: Path) -> Path:
    """The next free number: a run folder is never used twice."""
    taken = [int(p.name) for p in parent.glob("*") if p.name.isdigit()]
    folder = parent / str(max(taken, default=0) + 1)
    folder.mkdir(parents=True)
    return folder


def call(*command: object, capture: bool = False) -> str:
    output = subprocess.PIPE if capture else None
    return subprocess.run([str(x) for x in command], check=True, env=ENVIRONMENT, stdout=output, text=True).stdout


def parameters(run: Path) -> int:
    file = next((run / "checkpoints").glob("step-*/model.safetensors"))  # all have the same names and shapes
    with safe_open(str(file), "np") as weights:
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118


def train_and_score(program: Path, model: str, text: Path, run: Path, scale: Scale) -> dict:
    call(program, "train", "--preset", "demo", "--model", model, "--data", text, "--run", run, *scale.train)
    windows = ["--window", 128, "--step", 64, "--batch", 16, "--tokens", scale.score]
    score = call(program, "eval", "--run", run, *windows, "--json", capture=True)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    tokens = log[0]["tokens"]
    return {
        "bpc": json.loads(score)["bpc"],
        "rate": tokens / statistics.median(line["time"]["seconds"] for line in log),
        "memory": max(line["time"]["memory"] for line in log) / 1e6,
    }


def held_out_line(text: Path) -> str:
    """The first line of code of a readable length in the last 5 % of the text, which no model was trained on."""
    data = text.read_bytes()
    lines = data[len(data) * 95 // 100 :].decode("utf-8", "replace").splitlines()[1:]  # the first one is cut
    fits = [line.strip() for line in lines if 40 <= len(line.strip()) <= 76 and line.isascii() and "(" in line]
    return (fits or lines or ["def main(arguments):"])[0]


def sizes_by_layer(page: Path) -> tuple[list[str], list[list[float]]]:
    """The tokens of a page that `contextpool inspect` wrote, and of each layer the mean size over groups, by token."""
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert found, f"{page}: has no data"
    data = json.loads(found[1])
    return data["tokens"], [[statistics.mean(sizes) for sizes in zip(*layer["sigma"])] for layer in data["layers"]]


def picture(tokens: list[str], layers: list[list[float]]) -> str:
    """The line of text, and under it for each layer a bar a token: empty for 0, full for the widest window there is."""
    bars = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
    widest = max(max(layer) for layer in layers)
    lines = [" " * 9 + "".join(tokens)]
    for number, sizes in enumerate(layers, 1):
        row = "".join(bars[round(size / widest * (len(bars) - 1))] for size in sizes)
        wide, narrow = max(range(len(sizes)), key=sizes.__getitem__), min(range(len(sizes)), key=sizes.__getitem__)
        lines.append(f"layer {number}  {row}")
        lines.append(
            f"{'':9}{statistics.mean(sizes):.1f} tokens on average: {sizes[narrow]:.1f} at {tokens[narrow]!r} (character "
            f"{narrow + 1}), {sizes[wide]:.1f} at {tokens[wide]!r} (character {wide + 1})"
        )
    return "\n".join(lines)


def show_windows(program: Path, run: Path, text: Path, page: Path) -> None:
    call(program, "inspect", "--run", run, f"--text={held_out_line(text)}", "--out", page, capture=True)
    tokens, layers = sizes_by_layer(page)
    print("\nHow far ContextPool looks back from each character of a line that it was not trained on (sigma, the mean")
    print("of its groups): nobody set these sizes, the model chooses them from the text.\n")
    print(picture(tokens, layers))
    print(f"\nEach window, with its weights: open {page} in a browser.")


def main() -> int:
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--program", type=Path, default=ROOT / "build/bin/contextpool")
    options.add_argument("--out", type=Path, default=ROOT / "build/demo")
    options.add_argument("--quick", action="store_true", help="a few steps each: to see that everything works")
    arguments = options.parse_args()
    scale = QUICK if arguments.quick else Scale()
    start, out, program = time.monotonic(), folder_for(arguments.out), arguments.program
    text = out / "text"
    call(sys.executable, ROOT / "scripts/demo_text.py", text, scale.text)

    rows = []
    for model, what in MODELS:
        print(f"\n{what}: training {model}", flush=True)
        result = train_and_score(program, model, text, out / model, scale)
        rows.append((what, parameters(out / model), result))

    print(f"\nText written by {MODELS[-1][0]}:\n", flush=True)
    prompt = ["--prompt", "def ", "--tokens", scale.write, "--temperature", "0.7"]
    call(program, "generate", "--run", out / MODELS[-1][0], *prompt)

    print(f"\n{'model':<18} {'parameters':>10} {'bpc':>7} {'tokens/s':>9} {'memory':>8}")
    for what, size, r in rows:
        print(f"{what:<18} {size:>10} {r['bpc']:>7.3f} {r['rate']:>9.0f} {r['memory']:>5.0f} MB")
    print("\nbpc: bits per character on held-out text, lower is better. One run each, so small differences mean")
    print("little; tokens/s and memory are of training.")
    show_windows(program, out / MODELS[-1][0], text, out / "windows.html")
    print(f"\n{time.monotonic() - start:.0f} s. Everything is in {out}: the text, and for each model a run folder with")
    print("config.toml, log.jsonl, checkpoints/ and TensorBoard's events.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
