"""Makes the rows of media that a step needs: runs towers for what the plan says, and reads the others from the cache.

While a prompt is computed in several steps, its rows stay in the cache; behind the prompt, and for prompts without
media, nothing here does anything. Every rank of a model has whole towers; several items of a step are dealt among them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facet.layers.placement import Placement
from facet.media_span import MediaKind, MediaSpan
from facet.prepared_media import PreparedMedia
from facet.progress import Progress
from facet.request import Request
from facet.runner.encoder_cache import EncoderCache
from facet.runner.recording import Recorder
from facet.runner.tower_graphs import TowerGraphs, graphs_of
from facet.step import Admission, StepPlan
from facet.transfer import array_on_device

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMedia:
    """The rows of a step that are media."""

    places: NDArray[np.int64]  # ascending: which rows
    values: Tensor  # [rows, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seated:
    """The media of a running request, as long as some of it is to be computed."""

    spans: tuple[MediaSpan, ...]
    contents: Mapping[str, PreparedMedia]


class MediaInputs:
    """`towers` take a sequence of items, each as named tensors, and return the rows of each."""

    def __init__(
        self, towers: Mapping[MediaKind, nn.Module], width: int, placement: Placement, *, num_encoder_rows: int
    ) -> None:
        self.towers = towers
        self.num_encoded = 0  # items, ever
        self._width = width
        self._is_batch_invariant = placement.is_batch_invariant
        self._dtype, self._device, self._group = placement.dtype, placement.device, placement.group
        self._table_ids = {tower: ids for tower in towers.values() if (ids := table_ids(tower))}
        self.cache = EncoderCache(num_encoder_rows + num_table_rows(towers), width, placement)
        self._graphs: Mapping[Any, TowerGraphs] = {}  # by tower
        self._seated: dict[int, _Seated] = {}

    def capture_graphs(self, recorder: Recorder, progress: Progress) -> None:
        """Captures the towers that can be captured. The others are computed kernel by kernel, and so are all that are
        left out."""
        captured: dict[Any, TowerGraphs] = {}
        for tower, graphs in graphs_of(self.towers).items():
            try:
                graphs.capture(recorder, progress)
            except RuntimeError as error:  # an operation that this GPU or library cannot record: slower, not wrong
                name, reason = type(tower).__name__, str(error).partition("\n")[0]
                logger.warning("%s could not be captured and is computed kernel by kernel: %s", name, reason)
            else:
                captured[tower] = graphs
        self._graphs = captured

    def admit(self, admission: Admission) -> None:
        self._seated.pop(admission.seat, None)
        request = admission.request
        if request.contents:
            self._seated[admission.seat] = _Seated(
                spans=tuple(sorted((*request.media, *self._single_rows(request)), key=lambda span: span.first)),
                contents={content.content_key: content for content in request.contents},
            )

    def release(self, seat: int) -> None:
        self._seated.pop(seat, None)

    def rows_of(self, plan: StepPlan) -> StepMedia | None:
        """The rows of media in this step. None: there are none."""
        for key in plan.media.forgotten:
            self.cache.forget(key)
        if not self._seated:
            return None
        self._encode(plan.media.encoded)
        places, sources, start = [], [], 0
        entries = zip(plan.seats.tolist(), plan.num_computed.tolist(), plan.num_scheduled.tolist(), strict=True)
        for seat, first, count in entries:
            for span in self._seated[seat].spans if seat in self._seated else ():
                begin, end = max(span.first, first), min(span.end, first + count)
                if begin < end:
                    places.append(np.arange(begin, end) + (start - first))
                    sources.append(self.cache.places(span.content_key)[begin - span.first : end - span.first])
            if seat in self._seated and self._seated[seat].spans[-1].end <= first + count:
                del self._seated[seat]
            start += count
        if not places:
            return None
        return StepMedia(places=np.concatenate(places), values=self.cache.read(np.concatenate(sources)))

    def _single_rows(self, request: Request) -> Iterator[MediaSpan]:
        """Tokens around media whose embeddings a tower has, as spans of one row: those of Gemma 3n."""
        for tower, ids in self._table_ids.items():
            for place in np.flatnonzero(np.isin(request.prompt_token_ids, ids)).tolist():
                if any(span.first <= place < span.end for span in request.media):
                    continue
                token_id = request.prompt_token_ids[place]
                key = f"token {token_id}"
                if key not in self.cache:
                    embedder: Any = tower.embedder
                    row = torch.tensor([token_id - ids.start], device=self._device)
                    self.cache.add(key, embedder.look_up(row))
                yield MediaSpan(first=place, length=1, kind="image", content_key=key)

    def _encode(self, content_keys: tuple[str, ...]) -> None:
        known = {key: content for seated in self._seated.values() for key, content in seated.contents.items()}
        contents = [known[key] for key in content_keys]
        for kind in dict.fromkeys(content.kind for content in contents):
            chosen = [content for content in contents if content.kind == kind]
            deals = self._group is not None and len(chosen) > 1
            for content, rows in self._dealt_rows(chosen) if deals else self._rows(chosen):
                self.cache.add(content.content_key, rows)
        self.num_encoded += len(contents)

    def _dealt_rows(self, contents: Sequence[PreparedMedia]) -> Iterator[tuple[PreparedMedia, Tensor]]:
        """Deals contents out: each rank computes the rows of some; added to the others' zeros, everyone has all of
        them."""
        assert self._group is not None
        rank, counts = self._group.rank, [content.num_tokens for content in contents]
        rows = torch.zeros(sum(counts), self._width, dtype=self._dtype, device=self._device)
        places = {content.content_key: each for content, each in zip(contents, torch.split(rows, counts), strict=True)}
        for content, made in self._rows(contents[rank.index :: rank.size]):
            places[content.content_key].copy_(made)
        return zip(contents, torch.split(self._group.sum(rows), counts), strict=True)

    def _rows(self, contents: Sequence[PreparedMedia]) -> Iterator[tuple[PreparedMedia, Tensor]]:
        """The rows of contents of one kind; those of each hold until the next are asked for.

        Captured passes take one content each, which costs the device little and spares the host every launch. What is
        too large for them goes through the tower together, unless company may change no bit: libraries convolve and
        attend in another order where there are more pictures, and clips are filled up to the longest.
        """
        tower = self.towers[contents[0].kind] if contents else None
        graphs, others = self._graphs.get(tower), []
        for content in contents:
            item = {name: array_on_device(array.numpy(), self._device) for name, array in content.arrays.items()}
            if graphs is not None and (rows := graphs.encode(item)) is not None:
                yield content, _rows_of(content, rows)
            else:
                others.append((content, item))
        if others and tower is not None:
            items = [item for _, item in others]
            made = [tower([item])[0] for item in items] if self._is_batch_invariant else tower(items)
            for (content, _), rows in zip(others, made, strict=True):
                yield content, _rows_of(content, rows)


def _rows_of(content: PreparedMedia, made: Tensor) -> Tensor:
    """The rows of a content, without those behind them that are there for the size alone."""
    assert len(made) >= content.num_tokens, f"{content.num_tokens} rows were expected, not {len(made)}"
    return made[: content.num_tokens]


def table_ids(tower: nn.Module) -> range:
    """Ids of the vocabulary whose embeddings a tower has."""
    ids: range = getattr(tower.spec, "table_ids", range(0))
    return ids


def num_table_rows(towers: Mapping[MediaKind, nn.Module]) -> int:
    return sum(len(table_ids(tower)) for tower in dict.fromkeys(towers.values()))
