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
    program = package / "bin" / "contextpool"
    if not program.exists():
        sys.exit(f"contextpool: {program} is missing; build it with `make build` or reinstall the package")
    built, found = run_path(str(package / "_build.py"))["torch_version"], version("torch")
    built = ".".join(built.split(".")[:2])
    if not found.startswith(f"{built}."):  # PyTorch keeps its C++ interface within one minor version only
        sys.exit(
            f"contextpool: the program was built for torch {built}, but torch {found} is installed; "
            f"install torch=={built}.*, or build contextpool again with this torch (`make wheel`)"
        )
    if not (package.parent / "torch" / "lib").exists():
        paths = [str(torch / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    os.execv(program, ["contextpool", *sys.argv[1:]])


if __name__ == "__main__":
    main()
