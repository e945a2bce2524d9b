"""Makes one wheel for several minor versions of torch out of wheels that were built with one each.

    python scripts/merge_wheels.py OUTPUT_FOLDER FIRST.whl OTHER.whl ...

PyTorch keeps its C++ interface within one minor version, so each has a library and a program of its own; the rest of
the wheels is the same. The result is FIRST with the lib and bin of each OTHER in contextpool/torch-X.Y, where
contextpool/_build.py looks for them, and with a requirement that allows these versions of torch and no others.
"""

import base64
import hashlib
import re
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

BUILD, OWN = "contextpool/_build.py", re.compile(r"contextpool/(lib|bin)/.+")
Files = dict[str, tuple[ZipInfo, bytes]]


def read(wheel: Path) -> Files:
    with ZipFile(wheel) as archive:
        return {info.filename: (info, archive.read(info)) for info in archive.infolist() if not info.is_dir()}


def minor_of(files: Files) -> str:
    found = re.search(rb'^torch_version = "(\d+\.\d+)', files[BUILD][1], re.M)
    if not found:
        raise ValueError(f"{BUILD} names no version of torch")
    return found[1].decode()


def requirement(minors: list[str]) -> str:
    """That of torch: from the first to the last minor version, without those between that were not built."""
    numbers = sorted(tuple(map(int, minor.split("."))) for minor in minors)
    (major, low), (last, high) = numbers[0], numbers[-1]
    if major != last:
        raise ValueError(f"these wheels are for torch {major} and torch {last}; merge those of one major version")
    missing = [f"!={major}.{n}.*" for n in range(low, high) if (major, n) not in numbers]
    return ",".join([f">={major}.{low}", *missing, f"<{major}.{high + 1}"])


def check_same(first: Files, other: Files, wheel: Path) -> None:
    """But for what is built, the wheels must be of one source."""
    def rest(files: Files) -> dict[str, bytes]:
        return {name: data for name, (_, data) in files.items()
                if name != BUILD and not OWN.fullmatch(name) and ".dist-info/" not in name}  # fmt: skip

    ours, theirs = rest(first), rest(other)
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if differing:
        raise ValueError(f"{wheel} is not of the same source as the first wheel: {', '.join(differing)} differ")


def record(files: Files, name: str) -> bytes:
    lines = []
    for path, (_, data) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},,\n" if path == name else f"{path},sha256={digest},{len(data)}\n")
    return "".join(lines).encode()


def merge(output: Path, wheels: list[Path]) -> Path:
    files = read(wheels[0])
    minors = [minor_of(files)]
    for wheel in wheels[1:]:
        other = read(wheel)
        check_same(files, other, wheel)
        minors.append(minor_of(other))
        for name, (info, data) in other.items():
            if OWN.fullmatch(name):
                moved = ZipInfo(name.replace("contextpool/", f"contextpool/torch-{minors[-1]}/", 1), info.date_time)
                moved.external_attr, moved.compress_type = info.external_attr, ZIP_DEFLATED
                files[moved.filename] = (moved, data)
    if len(set(minors)) < len(minors):
        raise ValueError(f"two wheels are for the same torch: {', '.join(minors)}")
    metadata = next(name for name in files if name.endswith(".dist-info/METADATA"))
    info, data = files[metadata]
    wanted = b"Requires-Dist: torch" + requirement(minors).encode()
    files[metadata] = (info, re.sub(rb"^Requires-Dist: torch\s*==.*$", wanted, data, count=1, flags=re.M))
    listing = metadata.replace("METADATA", "RECORD")
    files[listing] = (files[listing][0], record(files, listing))
    output.mkdir(parents=True, exist_ok=True)
    result = output / wheels[0].name
    with ZipFile(result, "w", ZIP_DEFLATED) as archive:
        for info, data in files.values():
            archive.writestr(info, data)
    return result


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        print(merge(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
    except (ValueError, OSError) as error:
        sys.exit(f"merge_wheels: {error}")
