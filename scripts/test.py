"""Runs every test, C++ (ctest) then Python (pytest), and ends with their counts. Fails if any test failed."""

import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(command: list[str], report: Path) -> tuple[int, int, int, bool]:
    """Passed, failed, skipped and whether the runner was content. A runner that left no report failed once."""
    report.unlink(missing_ok=True)
    content = subprocess.run(command, cwd=ROOT).returncode == 0
    if not report.exists():
        return 0, 1, 0, False
    suites = [s for s in xml.parse(report).iter("testsuite") if s.get("tests")]

    def total(*names: str) -> int:
        return sum(int(s.get(name) or 0) for s in suites for name in names)

    failed, skipped = total("failures", "errors"), total("skipped", "disabled")
    return total("tests") - failed - skipped, failed, skipped, content


def main() -> int:
    native, python = ROOT / "build/ctest.xml", ROOT / "build/pytest.xml"
    results = [
        run(["ctest", "--preset", "default", "--output-junit", str(native)], native),
        run([sys.executable, "-m", "pytest", f"--junitxml={python}", *sys.argv[1:]], python),
    ]
    passed, failed, skipped = (sum(r[k] for r in results) for k in range(3))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 0 if all(r[3] for r in results) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
