"""Pictures a second on one core and on more: random resized crops to 224 of JPEGs of ImageNet's size, beside Pillow.

    python bench/loader.py [PHOTOS] [--seconds 3] [--threads 1 2] [--files 100]

PHOTOS is a folder of photographs (without it, patterns are drawn); JPEGs of about 500 x 375 at quality 95 are made of them
in a temporary folder. In each round Pillow decodes, Pillow decodes, crops and resizes, and then ours (`contextpool bench loader`, which makes the
batches of a training) does all of it, from files in the page cache. The table has the median round: pictures a second,
and a second of processor time, which on a busy machine is what one core would do alone. Needs the build tree and Pillow.
"""

import argparse
import importlib.util
import io
import math
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image


def draw(k: int) -> Image.Image:
    y, x = np.mgrid[0:400, 0:600]
    waves = [127 + 100 * np.sin(x / (5 + k % 7 + 4 * c)) * np.cos(y / (9 - c)) for c in range(3)]
    noise = np.random.default_rng(k).normal(0, 12, (400, 600, 3))
    return Image.fromarray((np.stack(waves, -1) + noise).clip(0, 255).astype(np.uint8))


def make_files(folder: Path, photos: Path | None, count: int) -> int:
    """Different parts of the photographs, ImageNet's mean size; returns the mean number of bytes."""
    sources = (
        [Image.open(path).convert("RGB") for path in sorted(photos.iterdir())]
        if photos
        else [draw(k) for k in range(8)]
    )
    rng = random.Random(1)
    places = [folder / part / name for part in ("train", "val") for name in ("a", "b")]
    for place in places:
        place.mkdir(parents=True)
    total = 0
    for k in range(count):
        source = sources[k % len(sources)]
        scale = rng.uniform(0.8, 1.0) * min(source.width / 500, source.height / 375)
        width, height = int(500 * scale), int(375 * scale)
        left, top = rng.randint(0, source.width - width), rng.randint(0, source.height - height)
        picture = source.resize((500, 375), Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        path = places[k % 2] / f"{k:04}.jpg"
        picture.save(path, quality=95)
        total += path.stat().st_size
    for place in places[2:]:
        (place / "one.jpg").write_bytes((places[0] / "0000.jpg").read_bytes())
    return total // count


def random_box(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def pillow(files: list[Path], seconds: float, resize: bool) -> tuple[float, float]:
    rng = random.Random(2)
    start, processor, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        picture = Image.open(io.BytesIO(files[done % len(files)].read_bytes())).convert("RGB")
        if resize:
            picture.crop(random_box(rng, *picture.size)).resize((224, 224), Image.Resampling.BICUBIC)
        done += 1
    return done / (time.perf_counter() - start), done / (time.process_time() - processor)


def ours(folder: Path, seconds: float, threads: int, augment: bool) -> tuple[float, float]:
    program = Path(importlib.util.find_spec("contextpool").origin).parents[2] / "bin/contextpool"
    command = [program, "bench", "loader", "--model", "resnet-50", "--data", folder, "--batch", "64"]
    command += ["--loaders", str(threads), "--seconds", str(seconds)]
    command += ["--rand-augment", "rand-m9-mstd0.5-inc1"] if augment else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    _, rate, of_processor = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    return float(rate), float(of_processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--files", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make_files(folder, options.photos, options.files)
        files = sorted((folder / "train").rglob("*.jpg"))
        print(
            f"{options.files} JPEGs of 500 x 375, {size / 1000:.0f} kB each on average; median of {options.rounds} rounds\n{'pictures':>54} {'CPU time':>8}"
        )
        rates: dict[str, list[tuple[float, float]]] = {}
        for _ in range(options.rounds):
            rates.setdefault("Pillow, decode only", []).append(pillow(files, options.seconds, False))
            rates.setdefault("Pillow, decode, crop, resize", []).append(pillow(files, options.seconds, True))
            for threads in options.threads:
                for augment in (False, True):
                    label = (
                        f"ours, crop, resize{', RandAugment' if augment else ''}, {threads} thread{'s' * (threads > 1)}"
                    )
                    rates.setdefault(label, []).append(ours(folder, options.seconds, threads, augment))
        for label, values in rates.items():
            wall, processor = (statistics.median(rate) for rate in zip(*values))
            print(f"{label:45} {wall:8.0f} {processor:8.0f}")


if __name__ == "__main__":
    main()
