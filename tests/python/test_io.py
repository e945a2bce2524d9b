"""Files of the io layer beside the packages that others wrote: safetensors, and TensorBoard's own reader."""

import importlib.util
import itertools
import json
import random
import struct
import subprocess
from pathlib import Path

import pytest
import torch

safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file  # noqa: E402

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool)  # fmt: skip


def tool(*args: object) -> str:
    """Runs tests/io/io_tool.cpp of the build tree that `import contextpool` finds."""
    build = Path(importlib.util.find_spec("contextpool").origin).parents[2]
    command = [str(build / "tests" / "contextpool_io_tool"), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def many_tensors() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    shapes = ((), (0,), (3,), (2, 0, 5), (3, 5, 7))
    return {
        f"{dtype} {shape} é\n\"\\\x7f": torch.randn(shape, generator=g).mul(3).to(dtype)
        for dtype, shape in itertools.product(DTYPES, shapes)
    }  # fmt: skip


@pytest.mark.parametrize("metadata", (None, {"format": "pt \u2028 \x01\t"}))
def test_files_are_those_of_the_reference_implementation_byte_for_byte(tmp_path: Path, metadata: dict | None) -> None:
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    save_file(many_tensors(), theirs, metadata)
    tool("copy", theirs, ours)
    assert ours.read_bytes() == theirs.read_bytes()
    for name, tensor in load_file(ours).items():
        want = many_tensors()[name]
        assert tensor.dtype == want.dtype and torch.equal(tensor, want)


def write_raw(path: Path, header: bytes, data: bytes, length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def entry(dtype: str = "U8", shape: object = (2,), offsets: object = (0, 2)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def hostile_files(folder: Path) -> list[Path]:
    """Files by hand, then a good one with bytes changed, dropped, doubled or swapped at random."""
    good = {"a": entry(), "b": entry("F32", (1, 3), (2, 14)), "__metadata__": {"k": "v"}}
    by_hand: list[tuple[object, int]] = [(good, 14), (good, 13), (good, 15), ({}, 0), ({}, 1), ([], 0), ({"a": 1}, 0)]
    numbers = (0, 1, 2, 3, -1, 1.0, 2.5, "2", None, True, [2], 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 1e300)
    by_hand += [({"a": entry(shape=(n,))}, 2) for n in numbers]
    by_hand += [({"a": entry(shape=(0, n))}, 2) for n in numbers]
    by_hand += [({"a": entry(shape=s)}, 2) for s in ((), (2, 1), (1, 1, 2), (2**32, 2**32), None, "2", 2, {"0": 2})]
    by_hand += [({"a": entry(offsets=(n, 2))}, 2) for n in numbers]
    by_hand += [({"a": entry(offsets=(0, n))}, 2) for n in numbers]
    by_hand += [({"a": entry(offsets=o)}, 2) for o in ((), (0,), (0, 2, 2), (2, 0), (1, 3), None, {"0": 0})]
    by_hand += [({"a": entry(dtype=d)}, 2) for d in ("BOOL", "I8", "F16", "F32", "f32", "", None, 1, "F8_E4M3", "U16")]
    by_hand += [({"a": {k: v for k, v in entry().items() if k != drop}}, 2) for drop in entry()]
    by_hand += [({"__metadata__": m}, 0) for m in ({}, {"k": 1}, {"k": None}, [], "x", 1, {"k": {}})]
    by_hand += [({"a": entry(), "b": entry(offsets=o)}, 4) for o in ((2, 4), (0, 2), (1, 3), (3, 5), (4, 6), (2, 2))]
    files = [write_raw(folder / f"hand{k}", json.dumps(h).encode(), b"\1" * n) for k, (h, n) in enumerate(by_hand)]

    raw = (b"", b"{", b"}", b"{}", b"{}  ", b" {}", b"{}\n\t", b"{}\0", b"{}x", b"\xff", b'{"\xff":{}}', b"[" * 10000,
           b'{"__metadata__":null}', b'{"__metadata__":{"k":"v","k":"w"}}',
           b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":[{}]}}',
           b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}}',
           b'{"a":{"dtype":"U8","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}}')  # fmt: skip
    files += [write_raw(folder / f"raw{k}", header, b"") for k, header in enumerate(raw)]
    lengths = (0, 1, 3, 8, 2**31, 2**63, 2**64 - 1, 100_000_000, 100_000_001)
    files += [write_raw(folder / f"length{k}", b"{}", b"", length) for k, length in enumerate(lengths)]

    chance, base = random.Random(1), json.dumps(good).encode()
    for k in range(500):
        header = bytearray(base)
        for _ in range(chance.choice((1, 1, 2, 4))):
            at, action = chance.randrange(len(header)), chance.randrange(4)
            if action == 0:
                header[at] = chance.choice(b'0123456789{}[]",:-.eE \\u\x00\x7f\xff')
            elif action == 1:
                del header[at]
            elif action == 2:
                header[at:at] = header[at : at + chance.randrange(1, 9)]
            else:
                other = chance.randrange(len(header))
                header[at], header[other] = header[other], header[at]
        files.append(write_raw(folder / f"random{k}", bytes(header), bytes(14)))
    return files


# Why this project refuses what the reference implementation takes.
STRICTER = ("expected one of BOOL", "does not begin with {", "is null, expected an object", 'metadata has "k" twice',
            'has a list for "more"', 'has tensor "a" twice', "too large to count")  # fmt: skip


def test_nothing_is_taken_that_the_reference_implementation_refuses(tmp_path: Path) -> None:
    files = hostile_files(tmp_path)
    answers = tool("check", *files).splitlines()
    assert len(answers) == len(files)
    counts, stricter = {"taken": 0, "refused": 0}, set()
    for path, answer in zip(files, answers, strict=True):
        try:
            safetensors.deserialize(path.read_bytes())
            theirs = ""
        except Exception as error:  # the package's own exception, or of what it calls
            theirs = str(error) or "refused"
        assert answer == "ok" or answer.startswith(f"{path}: "), answer
        assert not (answer == "ok" and theirs), f"{path.read_bytes()!r}: taken, but: {theirs}"
        if answer != "ok" and not theirs:
            reason = next((reason for reason in STRICTER if reason in answer), None)
            assert reason, f"{path.read_bytes()!r}: {answer}"
            stricter.add(reason)
        elif answer == "ok":
            counts["taken"] += 1
        else:
            counts["refused"] += 1
    assert counts["taken"] > 20 and counts["refused"] > 300, counts
    assert stricter == set(STRICTER)


def test_a_checkpoint_opens_in_python(tmp_path: Path) -> None:
    crc = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    tool("checkpoint", tmp_path)
    folder = tmp_path / "checkpoints" / "step-7"
    model = load_file(folder / "model.safetensors")
    assert torch.equal(model["a.weight"], torch.arange(12.0).reshape(3, 4).T)
    assert load_file(folder / "optimizer.safetensors")["a.weight.step"].item() == 7
    assert json.loads((folder / "state.json").read_text()) == {"seed": 1}
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"model": "tiny"}
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    assert manifest["step"] == 7
    assert {p.name for p in folder.iterdir()} == {*manifest["files"], "MANIFEST.json"}
    for name, listed in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert listed == {"size": len(data), "crc32c": f"{crc.crc32c(data):08x}"}


def accumulate(folder: Path) -> dict[str, list]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {
        **{tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]},
        **{tag: [(e.step, e.tensor_proto) for e in events.Tensors(tag)] for tag in events.Tags()["tensors"]},
    }


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    tool("events", tmp_path, 1, 300)
    got = accumulate(tmp_path)
    assert got["loss"] == [(step, float32(1 / step)) for step in range(1, 300)]
    assert got["rate/a"] == [(step, float32(-1 / step)) for step in range(1, 300)]
    assert {value for _, value in got["rate/b"]} == {float32(1e30)}
    (step, text), = got["config"]
    assert step == 3_000_000_000 and text.string_val[0].decode() == 'model = "tiny" µ'


def test_event_files_have_checksums_and_a_version(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    tool("events", tmp_path, 1, 3)
    (path,) = tmp_path.iterdir()
    events = list(loader.EventFileLoader(str(path)).Load())
    assert events[0].file_version == "brain.Event:2"
    assert len(events) == 6
    assert all(abs(e.wall_time - path.stat().st_mtime) < 60 for e in events)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    assert len(list(loader.EventFileLoader(str(path)).Load())) == 5, "the reader checks the checksums"


def test_after_a_resume_tensorboard_forgets_the_steps_that_were_lost(tmp_path: Path) -> None:
    tool("events", tmp_path, 1, 20)
    (first,) = tmp_path.iterdir()
    first.rename(tmp_path / "events.out.tfevents.1.a.1.0")
    tool("events", tmp_path, 11, 15, 10)
    assert [step for step, _ in accumulate(tmp_path)["loss"]] == list(range(1, 15))
