"""Every wrong input of the operators and modules, each in a process of its own: prints one line a case, how it ended.

Usage: refusals.py DEVICE. On the CPU each case is a fork, so that one that crashes is told from the rest; a CUDA
context does not survive a fork, so there a crash ends them all.
"""

import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import contextpool
import test_pool1d_errors as sequences
import test_pool2d as maps
from contextpool.models import LanguageModel
from contextpool.nn import ContextPool1d, ContextPool2d, ContextPoolCache

Cases = dict[str, tuple[str, Callable[[], object]]]  # what is wrong: (who must refuse it, the call)


def operator_cases(device: str) -> Cases:
    def there(tensors: tuple[Tensor, ...]) -> list[Tensor]:
        return [t if t.is_meta else t.to(device) for t in tensors]

    cases: Cases = {}
    for what, (tensors, _) in sequences.BAD.items():
        cases[f"pool1d, {what}"] = ("contextpool::pool1d", lambda t=tensors: contextpool.pool1d(*there(t)))
    for what, (tensors, options, _) in maps.BAD.items():
        call = lambda t=tensors, o=options: contextpool.pool2d(*there(t), **o)
        cases[f"pool2d, {what}"] = ("contextpool::pool2d", call)
    return cases


def module_cases(device: str) -> Cases:
    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.ones(*shape, dtype=dtype, device=device)

    row, causal = ContextPool1d(8).to(device), ContextPool1d(8, causal=True, reference_length=16).to(device)
    pixels = ContextPool2d(8).to(device)
    x = tensor(2, 5, 8)
    cache = ContextPoolCache()
    with torch.no_grad():
        causal.step(x, cache)
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "a row of other features": ("ContextPool1d", lambda: row(tensor(2, 5, 7))),
        "a row without batch": ("ContextPool1d", lambda: row(tensor(5, 8))),
        "a map for a row": ("ContextPool1d", lambda: row(tensor(2, 8, 6, 6))),
        "a mask of other tokens": ("ContextPool1d", lambda: row(x, mask=tensor(2, 4, dtype=torch.bool))),
        "lengths of another batch": ("ContextPool1d", lambda: row(x, lengths=tensor(3, dtype=torch.long))),
        "fractional lengths": ("ContextPool1d", lambda: row(x, lengths=tensor(2))),
        "lengths and a mask": (
            "ContextPool1d",
            lambda: row(x, lengths=tensor(2, dtype=torch.long), mask=tensor(2, 5, dtype=torch.bool)),
        ),
        "a step of what is not causal": ("ContextPool1d", lambda: row.step(x, ContextPoolCache())),
        "a step without tokens": ("ContextPool1d", lambda: causal.step(tensor(2, 0, 8), cache)),
        "a step of another batch": ("ContextPool1d", lambda: causal.step(tensor(3, 1, 8), cache)),
        "a row for a map": ("ContextPool2d", lambda: pixels(x)),
        "a map of other features": ("ContextPool2d", lambda: pixels(tensor(2, 7, 6, 6))),
        "a mask of another map": (
            "ContextPool2d",
            lambda: pixels(tensor(2, 8, 6, 6), mask=tensor(2, 6, 5, dtype=torch.bool)),
        ),
        "a model without layers": ("LanguageModel", lambda: LanguageModel(layers=0)),
    }
    return calls


def outcome(who: str, call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # whatever it is: the text tells
        return "refused" if who in str(error) else f"does not name {who}: {type(error).__name__}: {error}"
    return "was taken"


def in_a_fork(who: str, call: Callable[[], object]) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, outcome(who, call).encode()[:4000])
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text if status == 0 else f"ended the process with {status}"


def main() -> None:
    device = sys.argv[1]
    torch.set_num_threads(1)  # threads do not survive a fork either
    for what, (who, call) in (operator_cases(device) | module_cases(device)).items():
        print(f"{what}: {(in_a_fork if device == 'cpu' else outcome)(who, call)}", flush=True)
    print("end")


if __name__ == "__main__":
    main()
