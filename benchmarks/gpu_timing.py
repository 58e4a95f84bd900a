"""Times calls on a GPU as a model makes them: one after another, in a captured graph."""

from collections.abc import Callable, Sequence
from statistics import median

import torch

_NUM_WARMUPS = 3


def microseconds(calls: Sequence[Callable[[], object]], num_replays: int = 5) -> float:
    """Of one call: the median over some replays of a graph of them all. The first may compile, before any graph."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for _ in range(_NUM_WARMUPS + num_replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return median(times[_NUM_WARMUPS:]) * 1e3 / len(calls)
