"""How the benchmarks here measure on a CPU, and how they print."""

import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

Call = Callable[[], object]


def medians_ms(*calls: Call, seconds: float = 1.0, rounds: int = 5) -> list[float]:
    """Milliseconds of each call: the calls take turns, so that other load on the machine falls on all alike."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:  # compiles, starts threads
        call()
    for _ in range(rounds):
        for call, own in zip(calls, times, strict=True):
            call()  # the caches hold its tensors, not the last call's
            begin = time.perf_counter()
            while True:
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                own.append(1e3 * (end - start))
                if end - begin >= seconds / rounds:
                    break
    return [statistics.median(own) for own in times]


def shortest_ms(*calls: Call, seconds: float) -> list[float]:
    """Milliseconds of the processor, the shortest of many, on one thread; the calls take turns."""
    least = [float("inf")] * len(calls)
    for call in calls:
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            call()  # the caches hold its tensors, not the last call's
            start = time.process_time()
            call()
            least[i] = min(least[i], 1e3 * (time.process_time() - start))
    return least


def memory(field: str) -> int:
    """Bytes of resident memory: now (VmRSS) or at the highest (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def machine() -> str:
    """The conditions of a run; every table goes under such a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), "CPU")
    load = Path("/proc/loadavg").read_text().split()[0]
    return f"float32, {torch.get_num_threads()} threads of {model}, torch {torch.__version__}, load {load} at the start"


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    head = list(head)
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head), flush=True)
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
