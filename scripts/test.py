"""Runs every test, C++ (ctest) then Python (pytest), and ends with their counts. Fails if any test failed.

Where there is a GPU and the library is built for it, the C++ tests of runtime, nn and above run once more on it (tests/device.h);
those of the operators, and Python's, run on every device by themselves.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def has_gpu() -> bool:
    code = "import sys, torch; sys.path.insert(0, 'tests/python'); import pool1d_cases as p; print(p.devices())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return "cuda" in done.stdout


def run(command: list[str], reports: Path, **variables: str) -> tuple[int, int, int, bool]:
    """Passed, failed, skipped and whether the runner was content. A runner that is not, but reports nothing, failed."""
    for old in reports.glob("*.xml"):
        old.unlink()
    # Threads that wait do not spin: several programs share the cores.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **variables}
    content = subprocess.run(command, cwd=ROOT, env=environment).returncode == 0
    roots = [xml.parse(report).getroot() for report in reports.glob("*.xml")]
    suites = [s for root in roots for s in root.iter("testsuite") if s.get("tests")]

    def total(*names: str) -> int:
        return sum(int(s.get(name) or 0) for s in suites for name in names)

    failed, skipped = total("failures", "errors"), total("skipped", "disabled")
    return total("tests") - failed - skipped, failed or int(not content), skipped, content


def main() -> int:
    native, python = ROOT / "build/reports", ROOT / "build/reports/python"
    results = [run(["ctest", "--preset", "default"], native)]
    if has_gpu():
        upper = ["ctest", "--preset", "default", "-R", "^(runtime|nn|models|eval|train)$"]
        results.append(run(upper, native, CONTEXTPOOL_TEST_DEVICE="cuda"))
    results.append(
        run([sys.executable, "-m", "pytest", f"--junitxml={python}/pytest.xml", *sys.argv[1:]], python)
    )
    passed, failed, skipped = (sum(r[k] for r in results) for k in range(3))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 0 if all(r[3] for r in results) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
