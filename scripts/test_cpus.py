"""`make test-cpus`: the tests that depend on the CPU's instructions, as other machines would run them.

Ours: the kernels forced to each of their instruction sets (CONTEXTPOOL_CPU), but for the machine's widest, which
`make test` runs. PyTorch's: its vector code without AVX (ATEN_CPU_CAPABILITY), and its matrix products by MKL and
oneDNN in other orders (MKL_CBWR, MKL_ENABLE_INSTRUCTIONS, ONEDNN_MAX_CPU_ISA). A line for each variant; the exit status
is 1 if one failed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

OPERATORS = (["kernels", "ops"], ["test_pool1d.py", "test_pool2d.py", "test_pool2d_edges.py"])
MODULES = (
    ["nn", "models", "eval", "train"],
    ["test_context_pool.py", "test_block.py", "test_reach.py", "test_language_model.py"],
)
VARIANTS = [
    ({"CONTEXTPOOL_CPU": "portable"}, OPERATORS),
    ({"CONTEXTPOOL_CPU": "avx2"}, OPERATORS),
    ({"CONTEXTPOOL_CPU": "portable", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}, MODULES),
    ({"CONTEXTPOOL_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, MODULES),
    ({"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}, MODULES),
    ({"MKL_CBWR": "COMPATIBLE"}, MODULES),
    ({"MKL_CBWR": "AUTO,STRICT"}, MODULES),
]


def has(instructions: str) -> bool:
    """Whether this machine can run our kernels for these instructions."""
    code = "import torch, contextpool as c; c.pool1d(torch.ones(1, 2, 1), torch.zeros(1, 2), torch.ones(1, 2))"
    environment = {**os.environ, "CONTEXTPOOL_CPU": instructions}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode == 0


def run(variables: dict[str, str], layers: list[str], files: list[str]) -> bool:
    # Threads that wait do not spin: several programs share the cores.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **variables}
    native = ["ctest", "--preset", "default", "-R", f"^({'|'.join(layers)})$"]
    python = [sys.executable, "-m", "pytest", "-q", *(f"tests/python/{name}" for name in files)]
    results = [subprocess.run(command, cwd=ROOT, env=environment).returncode for command in (native, python)]
    return results == [0, 0]


def main() -> int:
    lines, failed = [], 0
    for variables, (layers, files) in VARIANTS:
        name = " ".join(f"{key}={value}" for key, value in variables.items())
        if not has(variables.get("CONTEXTPOOL_CPU", "portable")):
            lines.append(f"skipped        {name} (not on this machine)")
            continue
        print(f"== {name}", flush=True)
        began = time.monotonic()
        good = run(variables, layers, files)
        failed += not good
        lines.append(f"{'passed' if good else 'FAILED'} {time.monotonic() - began:5.0f} s {name}")
    print("\n".join(lines), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
