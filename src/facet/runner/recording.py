"""Records work once and replays it: CUDA graphs on a GPU, elsewhere a stand-in that runs the work again.

Work may stop at *pauses*, where something is done that differs from replay to replay. It calls the pause it is given
and goes on with what is then in its buffers; recorded, it becomes one graph for each stretch between pauses.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from facet.layers.attention import LayerReads

# Attention of a layer, from a buffer to a buffer.
Pause = Callable[[LayerReads], None]


class Replayable(Protocol):
    def replay(self) -> None: ...


class ReplayableInPieces(Protocol):
    def replay(self, pause: Pause) -> None: ...


class Recorder(Protocol):
    """All it records shares one pool of memory: no two of these may be under way at the same time."""

    def record(self, run: Callable[[], None]) -> Replayable: ...

    def record_pieces(self, run: Callable[[Pause], None]) -> ReplayableInPieces: ...


@contextmanager
def recording(device: torch.device) -> Iterator[Recorder]:
    """What records inside. Garbage is collected before each recording; what exists now is looked through only once,
    since a whole program takes a tenth of a second."""
    if device.type != "cuda":
        yield NoRecorder()
        return
    gc.collect()
    gc.freeze()
    try:
        yield GraphRecorder()
    finally:
        gc.unfreeze()


class GraphRecorder:
    """Runs work once, so that kernels are compiled and libraries set up, then records it."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, run: Callable[[], None]) -> Replayable:
        self._run_once(run)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            run()
        return graph

    def record_pieces(self, run: Callable[[Pause], None]) -> ReplayableInPieces:
        """What a piece leaves for a later one stays in the pool, since the work itself holds on to it meanwhile."""
        self._run_once(lambda: run(lambda reads: None))
        # As `torch.cuda.graph` does before it records: nothing may be freed for good while recording.
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        pieces: list[tuple[torch.cuda.CUDAGraph, LayerReads | None]] = []
        with torch.cuda.stream(self._stream):
            graph = self._begin()

            def pause(reads: LayerReads) -> None:
                nonlocal graph
                graph.capture_end()
                pieces.append((graph, reads))
                graph = self._begin()

            run(pause)
            graph.capture_end()
            pieces.append((graph, None))
        return GraphPieces(tuple(pieces))

    def _begin(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        return graph

    def _run_once(self, run: Callable[[], None]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)


@dataclass(frozen=True, slots=True)
class GraphPieces:
    """Graphs, each with the pause that follows it."""

    pieces: tuple[tuple[torch.cuda.CUDAGraph, LayerReads | None], ...]

    def replay(self, pause: Pause) -> None:
        for graph, reads in self.pieces:
            graph.replay()
            if reads is not None:
                pause(reads)


class RunOnce:
    """Runs work and records nothing."""

    def record(self, run: Callable[[], None]) -> Replayable:
        run()
        return Again(run)

    def record_pieces(self, run: Callable[[Pause], None]) -> ReplayableInPieces:
        run(lambda reads: None)
        return AgainInPieces(run)


class NoRecorder:
    """A recorder for machines without a GPU: replaying is computing the same, from the same buffers, again."""

    def record(self, run: Callable[[], None]) -> Replayable:
        return Again(run)

    def record_pieces(self, run: Callable[[Pause], None]) -> ReplayableInPieces:
        return AgainInPieces(run)


class Again:
    def __init__(self, run: Callable[[], None]) -> None:
        self.replay = run


class AgainInPieces:
    def __init__(self, run: Callable[[Pause], None]) -> None:
        self.replay = run
