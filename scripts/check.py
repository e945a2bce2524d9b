"""`make check`: everything slow, one step after the other, and a line for each: how it ended and how long it took.

    lint        clang-format, ruff, mypy and clang-tidy (what was clean before is not looked at again)
    cuda        where there is nvcc, the CUDA sources compiled
    asan        every C++ test under the address and undefined-behaviour sanitizers
    tsan        the C++ tests of kernels, operators, files and data under the thread sanitizer
    fuzz        the parser of untrusted files, for FUZZ_SECONDS (60)
    test-cpus   the tests of operators and modules with other CPU instructions (scripts/test_cpus.py)

Compiler warnings are errors in these builds. `check.py STEP...` runs some of the steps. The output of a step is in
build/check/STEP.txt; the exit status is 1 if one failed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOBS = os.environ.get("JOBS") or str(os.cpu_count() or 1)

STEPS: dict[str, list[str]] = {
    "lint": ["scripts/lint.sh"],
    "cuda": ["make", "cuda", f"JOBS={JOBS}"],
    "asan": ["make", "asan", f"JOBS={JOBS}"],
    "tsan": ["make", "tsan", f"JOBS={JOBS}"],
    "fuzz": ["scripts/fuzz.sh"],
    "test-cpus": [sys.executable, "scripts/test_cpus.py"],
}


def run(step: str, log: Path) -> bool:
    with log.open("w") as out:
        return subprocess.run(STEPS[step], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT).returncode == 0


def main() -> int:
    steps = sys.argv[1:] or list(STEPS)
    if unknown := [step for step in steps if step not in STEPS]:
        print(f"check: there is no step {unknown[0]}; there are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    folder = ROOT / "build/check"
    folder.mkdir(parents=True, exist_ok=True)
    start, failed = time.monotonic(), 0
    for step in steps:
        began, log = time.monotonic(), folder / f"{step}.txt"
        good = run(step, log)
        failed += not good
        took, where = f"{time.monotonic() - began:.0f} s", "" if good else f"  see {log}"
        print(f"{step:<10} {'passed' if good else 'FAILED':<7} {took:>7}{where}", flush=True)
    print(f"{len(steps) - failed} of {len(steps)} passed in {(time.monotonic() - start) / 60:.1f} minutes", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
