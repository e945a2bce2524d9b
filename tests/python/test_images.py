"""Pictures beside Pillow: decoding, resizing and the operations of RandAugment."""

import importlib.util
import io
import random
import struct
import subprocess
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image, ImageEnhance, ImageOps

Task = tuple[object, ...]


def tool(tasks: Iterable[Task]) -> list[str]:
    """Runs tests/data/images_tool.cpp of the build tree that `import contextpool` finds: an answer for each task."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    lines = "".join(" ".join(map(str, task)) + "\n" for task in tasks)
    done = subprocess.run([build / "tests/contextpool_images_tool"], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def pixels(picture: Image.Image) -> np.ndarray:
    if picture.mode.startswith("I"):  # 16-bit grey, which Pillow clips at 255: white nearly everywhere
        return np.repeat(np.asarray(picture)[..., None] >> 8, 3, axis=2).astype(np.int16)
    return np.asarray(picture.convert("RGB"), dtype=np.int16)


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Waves, edges and noise, so that neither a flat nor a random picture hides a difference."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 90 * np.sin(x / (3 + 5 * c) + y / (11 - 3 * c)) for c in range(3)]
    picture = np.stack(waves, -1) + rng.normal(0, 20, (height, width, 3))
    picture[(x // 17 + y // 13) % 3 == 0] = (250, 5, 120)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def check_decoding(folder: Path, files: dict[str, bytes], crops: int = 0) -> dict[str, int]:
    """The largest difference from Pillow of each file; and random crops have the bits of the whole."""
    tasks: list[Task] = []
    rng = random.Random(1)
    boxes = {}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        tasks.append(("decode", folder / name, folder / f"{name}.ppm"))
        width, height = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).size
        for k in range(crops):
            left, top = rng.randrange(width), rng.randrange(height)
            boxes[name, k] = (left, top, rng.randint(1, width - left), rng.randint(1, height - top))
            tasks.append(("decode", folder / name, folder / f"{name}.{k}.ppm", *boxes[name, k]))
    answers = tool(tasks)
    assert all(answer.startswith("ok") for answer in answers), answers
    differences = {}
    for name, data in files.items():
        ours = pixels(Image.open(folder / f"{name}.ppm"))
        theirs = pixels(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        assert ours.shape == theirs.shape
        differences[name] = int(abs(ours - theirs).max())
        for k in range(crops):
            left, top, width, height = boxes[name, k]
            part = pixels(Image.open(folder / f"{name}.{k}.ppm"))
            assert np.array_equal(part, ours[top : top + height, left : left + width]), (name, boxes[name, k])
    return differences


def saved(picture: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def test_jpegs_have_the_bits_of_pillow_and_crops_those_of_the_whole(tmp_path: Path) -> None:
    files = {}
    for width, height in ((1, 1), (7, 5), (33, 17), (250, 130)):
        picture = scene(width, height)
        for subsampling in (0, 1, 2):
            for progressive in (False, True):
                name = f"{width}x{height}-{subsampling}-{progressive:d}"
                files[name] = saved(picture, "JPEG", quality=90, subsampling=subsampling, progressive=progressive)
        files[f"{width}x{height}-grey"] = saved(picture.convert("L"), "JPEG", quality=70)
        files[f"{width}x{height}-cmyk"] = saved(picture.convert("CMYK"), "JPEG", quality=95)
        cmyk = files[f"{width}x{height}-cmyk"]
        transform = cmyk.index(b"Adobe\0") + 11  # 0: the four inks; 2: three of them as YCbCr
        assert cmyk[transform] == 0
        files[f"{width}x{height}-ycck"] = cmyk[:transform] + b"\2" + cmyk[transform + 1 :]
        files[f"{width}x{height}-restart"] = saved(picture, "JPEG", restart_marker_blocks=3, optimize=True)
    assert max(check_decoding(tmp_path, files, crops=6).values()) == 0


def test_crops_of_progressive_jpegs_that_lack_scans_are_parts_of_the_whole(tmp_path: Path) -> None:
    """libjpeg smooths their blocks by those beside them, a crop's edges included."""
    files = {}
    for subsampling in (0, 2):
        data = saved(scene(70, 50), "JPEG", progressive=True, subsampling=subsampling)
        starts = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
        for scans in (1, 3):
            tables = data.rindex(b"\xff\xc4", 0, starts[scans])  # of the first scan left out
            files[f"{subsampling}-{scans}"] = data[:tables] + b"\xff\xd9"
    check_decoding(tmp_path, files, crops=20)


def test_pngs_of_every_kind_have_the_bits_of_pillow(tmp_path: Path) -> None:
    picture = scene(45, 31)
    alpha = picture.copy()
    alpha.putalpha(picture.convert("L"))
    files = {
        "rgb": saved(picture, "PNG"),
        "rgba": saved(alpha, "PNG"),
        "grey": saved(picture.convert("L"), "PNG"),
        "grey-alpha": saved(alpha.convert("LA"), "PNG"),
        "bits": saved(picture.convert("1"), "PNG"),
        "palette": saved(picture.quantize(200), "PNG"),
        "palette-4": saved(picture.quantize(16), "PNG", bits=4),
        "palette-2": saved(picture.quantize(4), "PNG", bits=2),
        "palette-transparent": saved(picture.quantize(30), "PNG", transparency=3),
        "rgb-transparent": saved(picture, "PNG", transparency=(250, 5, 120)),
        "one-pixel": saved(scene(1, 1), "PNG"),
        **{f"raw-{colour}-{depth}-{adam}": raw_png(colour, depth, adam)
           for colour, depth in ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (4, 8), (4, 16), (6, 16))
           for adam in (0, 1)},
    }  # fmt: skip
    differences = check_decoding(tmp_path, files, crops=4)
    assert {name for name, difference in differences.items() if difference > 0} == set(), differences


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, colour: int, interlace: int, data: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    end = chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + end


def raw_png(colour: int, depth: int, interlace: int, width: int = 19, height: int = 11) -> bytes:
    """Kinds that Pillow does not write: random bits without filters, row after row of each pass."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    data = b""
    rng = random.Random(colour + depth)
    for x, y, step_x, step_y in passes if interlace else [(0, 0, 1, 1)]:
        columns, rows = len(range(x, width, step_x)), len(range(y, height, step_y))
        data += b"".join(b"\0" + rng.randbytes((columns * channels * depth + 7) // 8) for _ in range(rows if columns else 0))
    return png(width, height, depth, colour, interlace, data)


def test_orientations_are_applied_to_wholes_and_crops(tmp_path: Path) -> None:
    files = {}
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x010E], exif[0x0112] = "a picture", orientation
        files[f"{orientation}.jpg"] = saved(scene(40, 23), "JPEG", exif=exif)
        files[f"{orientation}.png"] = saved(scene(40, 23), "PNG", exif=exif)
    assert max(check_decoding(tmp_path, files, crops=5).values()) == 0


def test_photographs_have_the_bits_of_pillow(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[3] / "shared/data/photos"
    if not folder.exists():
        pytest.skip("no photographs beside this tree")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert max(check_decoding(tmp_path, files, crops=3).values()) == 0


def test_bad_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    good = {"jpg": saved(scene(64, 48), "JPEG"), "png": saved(scene(64, 48), "PNG")}
    progressive = saved(scene(64, 48), "JPEG", progressive=True)
    flipped = bytearray(good["png"])
    flipped[len(flipped) // 2] ^= 255
    files = {
        "empty.jpg": (b"", "the file is empty; expected a JPEG or PNG picture"),
        "text.jpg": (b"<html>404 not found</html>", 'this is text that begins with "<html>404 not fo"; expected'),
        "other.png": (saved(scene(9, 9), "GIF"), "this is a GIF; expected a JPEG or PNG picture"),
        "zeros.png": (bytes(100), 'the file begins with "\\x00\\x00\\x00\\x00"'),
        "half.png": (good["png"][: len(good["png"]) // 2], "PNG is damaged or cut short: the file ends before"),
        "flipped.png": (bytes(flipped), "PNG is damaged or cut short: "),
        "bomb.png": (png(60_000, 60_000, 8, 2, 0, b""), "a picture of 60000 x 60000 is larger than allowed"),
        "wide.png": (png(2**31 - 1, 1, 8, 2, 0, b""), "a picture of 2147483647 x 1 is larger than allowed"),
        "no-pixels.png": (png(0, 1, 8, 2, 0, b""), "PNG is damaged or cut short: "),
        "nothing.png": (png(64, 64, 8, 2, 0, b"")[:40], "PNG is damaged or cut short: "),
    }
    for name, data in (("jpg", good["jpg"]), ("progressive", progressive)):
        for size in (3, 4, 30, len(data) // 2, len(data) - 2):
            files[f"{name}-{size}.jpg"] = (data[:size], "JPEG is damaged or cut short: ")
    bomb = bytearray(good["jpg"])
    at = bomb.index(b"\xff\xc0") + 5
    bomb[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    files["bomb.jpg"] = (bytes(bomb), "a picture of 65000 x 65000 is larger than allowed (65500 x 65500, 89478485 pixels)")
    for name, (data, _) in files.items():
        (tmp_path / name).write_bytes(data)
    answers = tool([("decode", tmp_path / name, tmp_path / "out.ppm") for name in files])
    for (name, (_, message)), answer in zip(files.items(), answers):
        assert answer.startswith("error " + message), (name, answer)
    assert not (tmp_path / "out.ppm").exists()


def test_damaged_bytes_give_a_message_or_a_whole_picture(tmp_path: Path) -> None:
    rng = random.Random(2)
    tasks: list[Task] = []
    for name, data in (("jpg", saved(scene(40, 30), "JPEG")), ("png", saved(scene(40, 30), "PNG"))):
        for k in range(150):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            (tmp_path / f"{k}.{name}").write_bytes(damaged)
            tasks.append(("decode", tmp_path / f"{k}.{name}", tmp_path / "out.ppm"))
    answers = tool(tasks)
    assert len(answers) == len(tasks)
    assert all(answer.startswith(("ok", "error ")) and len(answer) < 400 for answer in answers)
    assert sum(answer.startswith("error") for answer in answers) > 100


FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def resized(picture: Image.Image, size: tuple[int, int], how: Image.Resampling, box: tuple | None = None) -> Image.Image:
    """Along x, then along y, as every Pillow until 12 does it; 13 takes the order that suits the shape, and where a
    cubic overshoots and is cut off between the two, that shows in a few grey levels."""
    left, top, right, bottom = box or (0, 0, *picture.size)
    rows = picture.resize((size[0], picture.height), how, (left, 0, right, picture.height))
    return rows.resize(size, how, (0, top, size[0], bottom))


def test_resized_pictures_have_the_bits_of_pillow(tmp_path: Path) -> None:
    rng = random.Random(3)
    sizes = [(1, 1), (1, 9), (9, 1), (2, 3), (17, 31), (64, 64), (101, 67), (300, 200)]
    tasks: list[Task] = []
    expected = []
    for k, (width, height) in enumerate(sizes):
        picture = scene(width, height, seed=k)
        picture.save(tmp_path / f"{k}.ppm")
        for size in [*sizes, (224, 224), (width, 40), (40, height)]:
            for name, how in FILTERS.items():
                left, top = rng.uniform(0, width - 1), rng.uniform(0, height - 1)
                real = (left, top, rng.uniform(left + 0.5, width), rng.uniform(top + 0.5, height))
                x, y = rng.randrange(width), rng.randrange(height)
                whole = (x, y, rng.randint(x + 1, width), rng.randint(y + 1, height))
                for box in (None, real, whole):
                    tasks.append(("resize", tmp_path / f"{k}.ppm", tmp_path / f"out-{len(tasks)}.ppm", name, *size, *(box or ())))
                    expected.append(pixels(resized(picture, size, how, box)))
    answers = tool(tasks)
    worst: dict[int, list[Task]] = {}
    for task, answer, theirs in zip(tasks, answers, expected):
        assert answer.startswith("ok"), (task, answer)
        worst.setdefault(int(abs(pixels(Image.open(task[2])) - theirs).max()), []).append(task[3:])
    assert worst.keys() == {0}, worst


def test_the_view_for_evaluation_is_that_of_resizing_and_cropping(tmp_path: Path) -> None:
    tasks: list[Task] = []
    expected = []
    for k, (width, height) in enumerate(((640, 427), (300, 500), (256, 256), (100, 81), (40, 900))):
        picture = scene(width, height, seed=k)
        picture.save(tmp_path / f"{k}.ppm")
        for size, ratio in ((224, 0.875), (64, 0.95), (32, 1.0)):
            small = int(size / ratio)
            whole_size = (small, small * height // width) if width <= height else (small * width // height, small)
            left, top = round((whole_size[0] - size) / 2), round((whole_size[1] - size) / 2)
            whole = resized(picture, whole_size, Image.Resampling.BICUBIC)
            expected.append(pixels(whole.crop((left, top, left + size, top + size))))
            tasks.append(("centre", tmp_path / f"{k}.ppm", tmp_path / f"out-{len(tasks)}.ppm", "bicubic", size, ratio))
    assert set(tool(tasks)) == {"ok "}
    for task, theirs in zip(tasks, expected):
        assert abs(pixels(Image.open(task[2])) - theirs).max() <= 1, task


FILL = (124, 116, 104)


def pillow_operation(picture: Image.Image, kind: str, argument: float, how: Image.Resampling) -> Image.Image:
    """The operations as timm writes them."""
    width, height = picture.size
    affine = {
        "shear_x": (1, argument, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, argument, 1, 0),
        "translate_x": (1, 0, argument * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, argument * height),
    }
    if kind in affine:
        return picture.transform(picture.size, Image.Transform.AFFINE, affine[kind], resample=how, fillcolor=FILL)
    enhance = {"colour": ImageEnhance.Color, "contrast": ImageEnhance.Contrast, "brightness": ImageEnhance.Brightness,
               "sharpness": ImageEnhance.Sharpness}  # fmt: skip
    if kind in enhance:
        return enhance[kind](picture).enhance(argument)
    added = [min(255, i + int(argument)) if i < 128 else i for i in range(256)]
    other = {
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
        "rotate": lambda: picture.rotate(argument, resample=how, fillcolor=FILL),
        "posterize": lambda: ImageOps.posterize(picture, int(argument)) if argument < 8 else picture,
        "solarize": lambda: ImageOps.solarize(picture, int(argument)),
        "solarize_add": lambda: picture.point(added * 3),
    }
    return other[kind]()


def test_operations_are_those_of_pillow(tmp_path: Path) -> None:
    arguments = {
        "autocontrast": [0], "equalize": [0], "invert": [0], "rotate": [0, 27, -30, 7.77, 13.1], "posterize": [1, 3, 4, 8],
        "solarize": [0, 26, 128, 256], "solarize_add": [0, 50, 110], "shear_x": [0, 0.27, -0.3], "shear_y": [0, 0.27, -0.3],
        "translate_x": [0, 0.45, -0.2], "translate_y": [0, 0.45, -0.21],
        **{kind: [0, 0.1, 0.5, 1, 1.81, 1.9] for kind in ("colour", "contrast", "brightness", "sharpness")},
    }  # fmt: skip
    flat = Image.fromarray(np.full((20, 30, 3), 77, np.uint8))
    dim = Image.fromarray((np.asarray(scene(60, 50)) // 5 + 40).astype(np.uint8))
    pictures = [scene(75, 50), scene(33, 80, 1), scene(1, 1), scene(2, 5), flat, dim, scene(224, 224, 2)]
    tasks: list[Task] = []
    expected = []
    for k, picture in enumerate(pictures):
        picture.save(tmp_path / f"{k}.ppm")
        for kind, values in arguments.items():
            for value in values:
                for name, how in FILTERS.items():
                    tasks.append(("apply", tmp_path / f"{k}.ppm", tmp_path / f"out-{len(tasks)}.ppm", name, kind, value))
                    expected.append(pixels(pillow_operation(picture, kind, value, how)))
    assert set(tool(tasks)) == {"ok "}
    worst: dict[str, int] = {}
    for task, theirs in zip(tasks, expected):
        ours = pixels(Image.open(task[2]))
        difference = int(abs(ours - theirs).max())
        worst[task[4]] = max(worst.get(task[4], 0), difference)
    print(worst)
    assert max(worst.values()) <= 1, worst
