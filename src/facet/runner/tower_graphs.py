"""Captures the pass of one item through a tower, once per size, and replays it.

A picture passes a tower in a few milliseconds, less than launching its kernels takes the host: on an H200, 7 and 34 ms
for E4B. Several are replayed one after the other. An item is copied into buffers at fixed addresses and filled up to
the next size with zeros. So its size and its rows follow from the item alone, and are the same to the last bit whatever
is encoded beside it or was before. They are not those of a pass without a graph, which differ in their last bits: an
item that fits a size always goes through its graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from facet.layers.placement import Placement
from facet.media_span import MediaKind
from facet.progress import Progress
from facet.runner.recording import Recorder, Replayable

Item = Mapping[str, Tensor]


@runtime_checkable
class PaddingTower(Protocol):
    """A tower that also takes an item filled up to one of a few sizes."""

    spec: Any
    placement: Placement

    @property
    def padded_sizes(self) -> tuple[int, ...]: ...  # ascending

    @property
    def num_padded_rows(self) -> int: ...  # of the largest of them

    def size_of(self, item: Item) -> int: ...

    def padded_inputs(self, size: int) -> dict[str, Tensor]: ...

    def forward_padded(self, item: Item, size: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Captured:
    inputs: dict[str, Tensor]
    rows: Tensor
    graph: Replayable


class TowerGraphs:
    """Passes of one tower. `capture` must come before anything is replayed."""

    def __init__(self, tower: PaddingTower) -> None:
        self._tower = tower
        self._size = torch.zeros((), dtype=torch.int64, device=tower.placement.device)
        self._captured: dict[int, _Captured] = {}

    @torch.inference_mode()
    def capture(self, recorder: Recorder, progress: Progress) -> None:
        """Record every size, the largest first: the others find its memory large enough."""
        sizes = self._tower.padded_sizes
        with progress.task("Capturing towers", len(sizes)) as advance:
            for size in reversed(sizes):
                inputs = self._tower.padded_inputs(size)
                rows = torch.empty_like(self._tower.forward_padded(inputs, self._size.fill_(size)))
                self._captured[size] = _Captured(
                    inputs=inputs, rows=rows, graph=recorder.record(partial(self._run, inputs, rows))
                )
                advance(1)

    def encode(self, item: Item) -> Tensor | None:
        """The rows of an item, and others behind them; they hold until the next call. None: it is too large."""
        count = self._tower.size_of(item)
        size = next((size for size in sorted(self._captured) if size >= count), None)
        if size is None:
            return None
        captured = self._captured[size]
        for name, array in item.items():
            captured.inputs[name][: len(array)] = array
            captured.inputs[name][len(array) :] = 0
        self._size.fill_(count)
        captured.graph.replay()
        return captured.rows

    def _run(self, inputs: Item, rows: Tensor) -> None:
        rows.copy_(self._tower.forward_padded(inputs, self._size))


def graphs_of(towers: Mapping[MediaKind, nn.Module]) -> dict[PaddingTower, TowerGraphs]:
    """The graphs of the towers that can be captured."""
    return {tower: TowerGraphs(tower) for tower in towers.values() if isinstance(tower, PaddingTower)}
