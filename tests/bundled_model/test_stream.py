"""Packing and making batches: nothing is lost or mixed up."""

import numpy as np

from tests.bundled_model.toy_examples import ToyExample, ToySource, equal_batches
from tools.bundled_model.stream import (
    IGNORED,
    PROMPT,
    TARGET,
    Batch,
    BatchMaker,
    OwnBatches,
    pack,
)


def example(length: int, num_targets: int, token: int) -> ToyExample:
    return ToyExample((token,) * length, (False,) * (length - num_targets) + (True,) * num_targets)


def maker() -> BatchMaker:
    return BatchMaker(source=ToySource(), seed=3, num_rows=2, row_length=64)


def documents_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Token ids and label kinds of every document, padding left out."""
    found = []
    for row in range(len(batch.token_ids)):
        for document in np.unique(batch.document_ids[row]):
            places = batch.document_ids[row] == document
            if batch.label_kinds[row][places].any():
                found.append((batch.token_ids[row][places].tolist(), batch.label_kinds[row][places].tolist()))
                assert batch.positions[row][places].tolist() == list(range(places.sum()))
    return found


def test_a_place_is_labelled_by_the_token_after_it() -> None:
    batch = pack([example(5, 2, 7), example(11, 1, 8)], 1, 16)
    kinds = {ids[0]: kinds for ids, kinds in documents_of(batch)}
    assert kinds[7] == [PROMPT, PROMPT, TARGET, TARGET, IGNORED]
    assert kinds[8] == [PROMPT] * 9 + [TARGET, IGNORED]


def test_rows_are_filled_tightly_and_padding_counts_for_nothing() -> None:
    examples = [example(length, 1, token=length) for length in (10, 3, 7, 9, 2)]
    batch = pack(examples, 2, 16)
    rows = [sorted(set(row.tolist()) - {0}) for row in batch.token_ids]
    assert rows == [[2, 3, 10], [7, 9]]
    assert batch.label_kinds[0, 15] == IGNORED
    assert batch.document_ids[0, 15] > batch.document_ids[0, 14]


def test_an_example_longer_than_a_row_is_passed_over() -> None:
    batch = pack([example(17, 1, 5), example(16, 1, 6)], 1, 16)
    assert set(batch.token_ids.ravel().tolist()) == {6}


def test_every_document_of_a_batch_is_a_whole_example() -> None:
    batch = maker().batch(4)
    examples = {}
    source = ToySource()(3_000_004)
    for _ in range(100):
        made = next(source)
        examples[made.token_ids] = made.is_target
    documents = documents_of(batch)
    assert sum(len(ids) for ids, _ in documents) > 0.9 * batch.num_tokens
    for ids, kinds in documents:
        is_target = examples[tuple(ids)]
        assert kinds == [TARGET if target else PROMPT for target in is_target[1:]] + [IGNORED]


def test_a_batch_follows_from_its_index() -> None:
    batches = OwnBatches(maker())
    first, second = batches.next(), batches.next()
    assert equal_batches(second, OwnBatches(maker(), first=1).next())
    assert not equal_batches(first, second)
    assert not equal_batches(first, batches.held_out())
