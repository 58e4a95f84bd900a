"""Batches from worker processes: in order, none lost or made twice, none used again without need."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.bundled_model.toy_examples import ToyExample, ToySource, equal_batches
from tools.bundled_model.stream import BatchMaker, ExampleSource
from tools.bundled_model.workers import UsedBatches, WorkerBatches


@dataclass(frozen=True, slots=True)
class BrokenSource:
    def __call__(self, seed: int) -> Iterator[ToyExample]:
        raise ValueError("no words left")


def maker(source: ExampleSource | None = None, row_length: int = 64) -> BatchMaker:
    return BatchMaker(source=source or ToySource(), seed=3, num_rows=2, row_length=row_length)


def test_the_same_batches_in_the_same_order() -> None:
    with contextlib.closing(WorkerBatches(maker(), num_workers=2, most_uses=1, first=5)) as batches:
        for index in range(5, 12):
            assert equal_batches(batches.next(), maker().batch(index)), index
        assert equal_batches(batches.held_out(), maker().held_out())
        assert (batches.num_fresh, batches.num_repeated) == (7, 0)


def test_what_workers_have_made_is_used_before_anything_comes_again() -> None:
    """Batches of more than a pipe holds: each must be taken while its worker writes it."""
    source = ToySource(most=2000)
    with contextlib.closing(WorkerBatches(maker(source, 20_000), num_workers=1, most_uses=4)) as batches:
        deadline = time.monotonic() + 60
        while batches.num_ahead < 8:
            assert time.monotonic() < deadline, "the worker makes nothing"
            time.sleep(0.01)
        for _ in range(8):
            assert batches.next().token_ids.nbytes > 65_536
        assert (batches.num_fresh, batches.num_repeated) == (8, 0)


def test_no_more_than_a_few_are_made_ahead() -> None:
    with contextlib.closing(WorkerBatches(maker(), num_workers=1, most_uses=1, most_ahead_per_worker=3)) as batches:
        batches.next()
        time.sleep(0.5)
        assert batches.num_ahead <= 3


def test_a_failing_worker_ends_the_run() -> None:
    batches = WorkerBatches(maker(BrokenSource()), num_workers=1, most_uses=1)
    with contextlib.closing(batches), pytest.raises(RuntimeError, match="no words left"):
        batches.next()


def test_used_batches_come_again_in_turn_and_not_too_often() -> None:
    one, two, three = (maker().batch(index) for index in range(3))
    used = UsedBatches(most_uses=3, most_kept=2)
    assert used.again() is None
    for batch in (one, two, three):
        used.add(batch)
    assert [used.again() for _ in range(5)] == [two, three, two, three, None], "one is no longer kept"
