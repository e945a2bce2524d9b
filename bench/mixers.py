"""Which local mixer helps a small model most? Trains each form with `contextpool train`, scores it on dev and test.

On a text (--data FILE: preset demo, bits per character, lower is better), or on generated rows (--data recall or k-hop:
the preset of that name, share of right answers by the number of layers). One thread a run, --jobs runs at once; a run
that is there is not trained again, so that the same command goes on where it was stopped.

    python bench/mixers.py --data text.txt --runs runs/mixers [--forms plain canon ...] [--seeds 1 2 3] [--jobs 2]
    python bench/mixers.py --data k-hop --runs runs/hops --layers 2 3 4
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import print_table

ROOT = Path(__file__).resolve().parent.parent
FORMS = {
    "plain": ("plain", ["--mix", ""]),
    "taps": ("15 taps at O", ["--mix", "O=depthwise"]),
    "canon": ("canon at A, C", ["--mix", "AC=canon"]),
    "dynamic": ("dynamic at A, C", ["--mix", "AC=dynamic"]),
    "pool-1": ("ContextPool at O, 1 group", ["--mix", "O=context_pool", "--pool-groups", "1"]),
    "pool-16": ("ContextPool at O, 16 groups", ["--mix", "O=context_pool", "--pool-groups", "16"]),
    "gated": (
        "gated ContextPool at A, C, 16 groups",
        ["--mix", "AC=context_pool", "--mixer-residual", "gated", "--pool-groups", "16"],
    ),
    "canon-pool": (
        "canon at A, C and ContextPool at O, 16 groups",
        ["--mix", "AC=canon,O=context_pool", "--pool-groups", "16"],
    ),
}
GENERATED = ("recall", "k-hop")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def call(*command: object) -> str:
    return subprocess.run(
        [str(x) for x in command], check=True, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ).stdout


def score(program: Path, run: Path, split: str, windows: list[object]) -> float:
    result = json.loads(call(program, "eval", "--run", run, "--split", split, "--json", *windows))
    return float(result.get("bpc", result.get("accuracy")))


def train(arguments: argparse.Namespace, form: str, layers: int, seed: int) -> dict:
    generated = arguments.data in GENERATED
    run = arguments.runs / f"{form}-{layers}-{seed}"
    result = run / "mixers.json"
    if result.exists():
        return json.loads(result.read_text())
    flags = [*FORMS[form][1], "--model", "tiny", "--layers", layers, "--seed", seed, "--threads", 1, "--device", "cpu"]
    if generated:
        flags += ["--pool-initial-sigma", 2]  # as the preset demo has it
    if arguments.steps:
        flags += ["--steps", arguments.steps]
    if (run / "config.toml").exists():
        call(arguments.program, "train", "--run", run, "--resume")
    else:
        preset = arguments.data if generated else "demo"
        call(arguments.program, "train", "--preset", preset, "--data", arguments.data, "--run", run, *flags)
    windows = [] if generated else ["--window", 128, "--step", 64, "--batch", 16, "--tokens", arguments.tokens]
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    found = {
        "form": form,
        "layers": layers,
        "seed": seed,
        "dev": score(arguments.program, run, "dev", windows),
        "test": score(arguments.program, run, "test", windows),
        "ms": 1e3 * statistics.median(line["time"]["seconds"] for line in lines),
    }
    result.write_text(json.dumps(found) + "\n")
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.stdev(values):.3f}" if len(values) > 1 else ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="a text, or recall or k-hop")
    options.add_argument("--runs", type=Path, required=True)
    options.add_argument("--program", type=Path, default=ROOT / "build/bin/contextpool")
    options.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options.add_argument("--layers", type=int, nargs="+", default=[2])
    options.add_argument("--steps", type=int, help="instead of the preset's")
    options.add_argument("--tokens", type=int, default=50_000, help="of each split of a text that are scored")
    options.add_argument("--jobs", type=int, default=1)
    arguments = options.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    cells = list(itertools.product(arguments.forms, arguments.layers, arguments.seeds))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda cell: train(arguments, *cell), cells))
    rows = []
    for form, layers in itertools.product(arguments.forms, arguments.layers):
        own = [r for r in results if (r["form"], r["layers"]) == (form, layers)]
        dev, test = [r["dev"] for r in own], [r["test"] for r in own]
        each = ", ".join(f"{value:.3f}" for value in test)
        ms = statistics.median(r["ms"] for r in own)
        mean = (f"{statistics.mean(dev):.3f}", f"{statistics.mean(test):.3f}", spread(test))
        rows.append((FORMS[form][0], str(layers), *mean, each, f"{ms:.0f}"))
    print_table(("form", "layers", "dev", "test", "sd", "test by seed", "ms a step"), rows)


if __name__ == "__main__":
    main()
