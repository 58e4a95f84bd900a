"""Makes the rows of media that a step needs: runs towers for content that is not in the cache.

A request's content is encoded when the first step comes that computes one of its rows. While a prompt is computed in
several steps, its rows stay in the cache; behind the prompt, and for prompts without media, nothing here does anything.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from facet.media_span import MediaKind, MediaSpan
from facet.prepared_media import PreparedMedia
from facet.request import Request
from facet.runner.encoder_cache import EncoderCache
from facet.step import Admission, StepPlan
from facet.transfer import array_on_device

MAX_ROWS_PER_CALL = 2048  # of a tower, unless a single item has more: its activations take memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMedia:
    """The rows of a step that are media."""

    places: NDArray[np.int64]  # ascending: which rows
    values: Tensor  # [rows, hidden]


@dataclass(slots=True, kw_only=True)
class _Seated:
    """The media of a running request, as long as some of it is to be computed."""

    spans: tuple[MediaSpan, ...]
    contents: Mapping[str, PreparedMedia]
    num_computed: int  # behind the steps launched so far

    @property
    def needed(self) -> Iterator[str]:
        return (span.content_key for span in self.spans if span.end > self.num_computed)


class MediaInputs:
    """`towers` take a sequence of items, each as named tensors, and return the rows of each."""

    def __init__(
        self, towers: Mapping[MediaKind, nn.Module], device: torch.device, *, max_num_cached_rows: int
    ) -> None:
        self.towers = towers
        self.num_encoded = 0  # items, ever
        self._device = device
        self._cache = EncoderCache(max_num_cached_rows)
        self._own_rows: dict[str, Tensor] = {}  # of ids whose embeddings a tower has, by key
        self._seated: dict[int, _Seated] = {}

    def admit(self, admission: Admission) -> None:
        self._seated.pop(admission.seat, None)
        request = admission.request
        if request.contents:
            self._seated[admission.seat] = _Seated(
                spans=tuple(sorted((*request.media, *self._single_rows(request)), key=lambda span: span.first)),
                contents={content.content_key: content for content in request.contents},
                num_computed=admission.num_computed_tokens,
            )

    def release(self, seat: int) -> None:
        self._seated.pop(seat, None)

    def rows_of(self, plan: StepPlan) -> StepMedia | None:
        """None: no row of this step is media."""
        if not self._seated:
            return None
        parts = list(self._parts(plan))
        self._encode(
            {
                span.content_key: seated.contents[span.content_key]
                for seated, span, _, _ in parts
                if span.content_key in seated.contents
            }
        )
        places = [first + np.arange(rows.stop - rows.start) for _, _, rows, first in parts]
        values = [self._rows(span.content_key)[rows] for _, span, rows, _ in parts]
        self._cache.trim({key for seated in self._seated.values() for key in seated.needed})
        for seat in [seat for seat, seated in self._seated.items() if not any(True for _ in seated.needed)]:
            del self._seated[seat]
        if not parts:
            return None
        return StepMedia(places=np.concatenate(places), values=torch.cat(values))

    def _parts(self, plan: StepPlan) -> Iterator[tuple[_Seated, MediaSpan, slice, int]]:
        """Parts of spans that the step computes: which of a span's rows, and the row of the step that is the first."""
        start = 0
        entries = zip(plan.seats.tolist(), plan.num_computed.tolist(), plan.num_scheduled.tolist(), strict=True)
        for seat, first, count in entries:
            if (seated := self._seated.get(seat)) is not None:
                seated.num_computed = first + count
                for span in seated.spans:
                    begin, end = max(span.first, first), min(span.end, first + count)
                    if begin < end:
                        yield seated, span, slice(begin - span.first, end - span.first), start + begin - first
            start += count

    def _single_rows(self, request: Request) -> Iterator[MediaSpan]:
        """Tokens around media whose embeddings a tower has, as spans of one row: those of Gemma 3n."""
        for tower in dict.fromkeys(self.towers.values()):
            ids: range = getattr(tower.spec, "table_ids", range(0))
            for place in np.flatnonzero(np.isin(request.prompt_token_ids, ids)).tolist() if ids else ():
                if any(span.first <= place < span.end for span in request.media):
                    continue
                token_id = request.prompt_token_ids[place]
                key = f"token {token_id}"
                if key not in self._own_rows:
                    embedder: Any = tower.embedder
                    self._own_rows[key] = embedder.look_up(torch.tensor([token_id - ids.start], device=self._device))
                yield MediaSpan(first=place, length=1, kind="image", content_key=key)

    def _rows(self, key: str) -> Tensor:
        own = self._own_rows.get(key)
        return self._cache.use(key) if own is None else own

    def _encode(self, contents: Mapping[str, PreparedMedia]) -> None:
        missing = [content for key, content in contents.items() if key not in self._cache]
        for kind in dict.fromkeys(content.kind for content in missing):
            for group in _groups([content for content in missing if content.kind == kind]):
                items = [
                    {name: array_on_device(array.numpy(), self._device) for name, array in content.arrays.items()}
                    for content in group
                ]
                for content, rows in zip(group, self.towers[kind](items), strict=True):
                    assert len(rows) == content.num_tokens, f"{content.num_tokens} rows were expected, not {len(rows)}"
                    # A copy: rows of one call lie in one tensor, which the last of them would keep.
                    self._cache.add(content.content_key, rows.clone() if len(group) > 1 else rows)
                self.num_encoded += len(group)


def _groups(contents: Sequence[PreparedMedia]) -> Iterator[list[PreparedMedia]]:
    """What goes through a tower at once."""
    group: list[PreparedMedia] = []
    num_rows = 0
    for content in contents:
        if group and num_rows + content.num_tokens > MAX_ROWS_PER_CALL:
            yield group
            group, num_rows = [], 0
        group.append(content)
        num_rows += content.num_tokens
    if group:
        yield group
