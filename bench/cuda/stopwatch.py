"""How the benches here measure time on a GPU: medians of single calls between two events, the GPU idle before."""

import os
import statistics
from collections.abc import Callable

import torch

# torch.compile would start a process for each core, beside what is measured. (Read when it is first used.)
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

Step = Callable[[], object]


def medians_ms(*calls: Step, count: int = 200, rounds: int = 10) -> list[float]:
    """Of each call; the calls take turns, since a host has its faster and slower seconds."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, own in zip(calls, times):
            for _ in range(3):
                call()
            for _ in range(-(-count // rounds)):
                torch.cuda.synchronize()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                own.append(begin.elapsed_time(end))
    return [statistics.median(own) for own in times]


def replay_of(call: Step) -> Step:
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def copy_rate() -> float:
    """Bytes a millisecond, read and written."""
    a = torch.randn(1 << 30, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.nbytes / medians_ms(lambda: b.copy_(a))[0]
