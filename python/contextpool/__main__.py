#!python
"""`python -m contextpool` and the command `contextpool`: runs the program that lies beside the package.

As a command this file is a script that imports neither the package nor torch: it finds the program, shows it torch's
libraries where they are not beside the package, and becomes it.
"""

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"contextpool: the package {package} is not installed for {sys.executable}")
    return Path(spec.origin).parent


def main() -> None:
    package, torch = folder_of("contextpool"), folder_of("torch")
    try:
        built = run_path(str(package / "_build.py"))["folder_for"](version("torch"))
    except ImportError as error:
        sys.exit(f"contextpool: {error}")
    program = built / "bin" / "contextpool"
    if not program.exists():
        sys.exit(f"contextpool: {program} is missing; build it with `make build` or reinstall the package")
    if built != package or not (package.parent / "torch" / "lib").exists():
        paths = [str(built / "lib"), str(torch / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    os.execv(program, ["contextpool", *sys.argv[1:]])


if __name__ == "__main__":
    main()
