"""Batches say row by row what a loop would say, and sequences in company compute what they compute alone."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from facet.forward_batch import AttentionRows, ForwardBatch
from facet.kernels.paged_attention import row_places
from facet.kv_layout import KVLayout, make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.families import read_model_spec
from facet.model.gemma import Gemma
from facet.runner.batch import Chunks, SequenceRows, make_batch, make_batch_of
from tests.media_spans import spans_at
from tests.model.paged_model import PagedSequence, load
from tests.published_configs import pattern
from tests.tiny_checkpoints import SHRUNK, write_config

CPU = torch.device("cpu")
LAYOUT = make_kv_layout(read_model_spec(SHRUNK["Gemma 4 E4B"]), dtype="float32", min_tokens_per_block=3)
FAMILIES = ("Gemma 4 E2B", "Gemma 4 E4B", "Gemma 4 26B-A4B", "Gemma 4 31B", "Gemma 3 1B", "Gemma 3n E4B")


@st.composite
def sequence_rows(draw: st.DrawFn) -> SequenceRows:
    token_ids = draw(st.lists(st.integers(0, 63), min_size=1, max_size=9))
    num_computed = draw(st.integers(0, 40))
    context_len = num_computed + len(token_ids)
    needed = [-(-context_len // group.tokens_per_block) for group in LAYOUT.groups]
    return SequenceRows(
        token_ids=token_ids,
        num_computed=num_computed,
        # A table may be longer than the context: blocks are given out ahead.
        block_tables=tuple(
            draw(st.lists(st.integers(1, 99), min_size=count, max_size=count + draw(st.integers(0, 2))))
            for count in needed
        ),
        num_logit_rows=draw(st.integers(0, len(token_ids))),
    )


batches = st.lists(sequence_rows(), min_size=1, max_size=6)


def check_rows(rows: AttentionRows, parts: list[tuple[SequenceRows, int]], *, is_upper: bool = False) -> None:
    """`parts`: which sequences take part, each with its last so many rows. All of them are of prompts."""
    context_lens = [sequence.num_computed + len(sequence.token_ids) for sequence, _ in parts]
    query_lens = [count for _, count in parts]
    assert rows.host_query_lens == tuple(query_lens)
    assert rows.host_context_lens == tuple(context_lens)
    assert rows.host_prompt_lens == tuple(count - is_upper for count in query_lens), "the prompt ends here"
    positions = [
        length - count + row for length, count in zip(context_lens, query_lens, strict=True) for row in range(count)
    ]
    assert rows.positions.tolist() == positions
    assert rows.positions.dtype == rows.seats.dtype == torch.int32
    sequences = [sequence for sequence, count in parts for _ in range(count)]
    for group, table in enumerate(rows.block_tables):
        assert table.dtype == torch.int32
        for row, sequence in zip(table[rows.seats].tolist(), sequences, strict=True):
            own = list(sequence.block_tables[group])
            assert row[: len(own)] == own


def check_batch(batch: ForwardBatch, sequences: list[SequenceRows], *, skip_upper: bool) -> None:
    assert batch.token_ids.tolist() == [token for sequence in sequences for token in sequence.token_ids]
    assert batch.token_ids.dtype == batch.logit_rows.dtype == torch.int64
    check_rows(batch.rows, [(sequence, len(sequence.token_ids)) for sequence in sequences])
    places: list[list[tuple[int, int]]] = [[] for _ in LAYOUT.groups]
    logit_rows, start = [], 0
    for sequence in sequences:
        for index in range(len(sequence.token_ids)):
            for group, table, out in zip(LAYOUT.groups, sequence.block_tables, places, strict=True):
                block, slot = divmod(sequence.num_computed + index, group.tokens_per_block)
                out.append((table[block], slot))
            if index >= len(sequence.token_ids) - sequence.num_logit_rows:
                logit_rows.append(start + index)
        start += len(sequence.token_ids)
    assert batch.logit_rows.tolist() == logit_rows
    for group, table, out in zip(LAYOUT.groups, batch.rows.block_tables, places, strict=True):
        blocks, slots = row_places(batch.rows, table, tokens_per_block=group.tokens_per_block)
        assert list(zip(blocks.tolist(), slots.tolist(), strict=True)) == out
        assert blocks.dtype == slots.dtype == torch.int64
    if not skip_upper:
        assert batch.upper_rows is None
        return
    assert batch.upper_rows is not None
    wanted = [(one, one.num_logit_rows) for one in sequences if one.num_logit_rows]
    check_rows(batch.upper_rows, wanted, is_upper=True)


@given(sequences=batches, skip_upper=st.booleans())
def test_every_row_is_where_a_loop_would_put_it(sequences: list[SequenceRows], skip_upper: bool) -> None:
    check_batch(make_batch_of(sequences, CPU, skip_upper=skip_upper), sequences, skip_upper=skip_upper)


@given(sequences=batches)
def test_arrays_and_lists_give_the_same_batch(sequences: list[SequenceRows]) -> None:
    """The engine keeps wide tables with a seat for every request there may be, in no order."""
    seats = np.random.default_rng(0).permutation(10)[: len(sequences)].astype(np.int32)
    tables = []
    for group in range(len(LAYOUT.groups)):
        table = torch.zeros(10, 30, dtype=torch.int32)
        for seat, sequence in zip(seats.tolist(), sequences, strict=True):
            own = sequence.block_tables[group]
            table[seat, : len(own)] = torch.tensor(own)
        tables.append(table)
    chunks = Chunks(
        num_computed=np.array([sequence.num_computed for sequence in sequences], np.int32),
        num_scheduled=np.array([len(sequence.token_ids) for sequence in sequences], np.int32),
        num_logit_rows=np.array([sequence.num_logit_rows for sequence in sequences], np.int32),
        num_prompt=np.array([sequence.num_computed + len(sequence.token_ids) for sequence in sequences], np.int32),
        seats=seats,
    )
    token_ids = torch.tensor([token for sequence in sequences for token in sequence.token_ids])
    check_batch(make_batch(token_ids, chunks, tuple(tables), CPU, skip_upper=True), sequences, skip_upper=True)


@given(data=st.data())
def test_rows_of_prompts_and_of_media_are_told_from_others(data: st.DataObject) -> None:
    """Against a look at every row. In the upper layers the last token of a prompt is answered, unless it is media."""
    numbers, spans = [], {}
    for seat in range(data.draw(st.integers(1, 4))):
        num_prompt, num_computed = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 32))
        num_scheduled = data.draw(st.integers(1, 30))
        first = data.draw(st.integers(0, num_prompt - 1))
        end = data.draw(st.integers(first + 1, num_prompt))
        # A chunk has all of a span or nothing.
        if not (num_computed < end and first < num_computed + num_scheduled) or (
            num_computed <= first and end <= num_computed + num_scheduled
        ):
            spans[seat] = spans_at((first, end))
        numbers.append((num_computed, num_scheduled, data.draw(st.integers(0, num_scheduled)), num_prompt, seat))
    columns = (np.array(column, np.int32) for column in zip(*numbers, strict=True))
    names = ("num_computed", "num_scheduled", "num_logit_rows", "num_prompt", "seats")
    chunks = Chunks(**dict(zip(names, columns, strict=True)))
    token_ids = torch.zeros(int(chunks.num_scheduled.sum()), dtype=torch.int64)
    batch = make_batch(token_ids, chunks, (), CPU, skip_upper=True, media=spans)
    assert batch.upper_rows is not None
    for rows, counts, num_answered in (
        (batch.rows, chunks.num_scheduled, 0),
        (batch.upper_rows, chunks.num_logit_rows, 1),
    ):
        media_rows, prompt_lens, start = [], [], 0
        for (num_computed, num_scheduled, _, num_prompt, seat), count in zip(numbers, counts.tolist(), strict=True):
            positions = range(num_computed + num_scheduled - count, num_computed + num_scheduled)
            is_media = [any(span.first <= at < span.end for span in spans.get(seat, ())) for at in positions]
            media_rows += [start + row for row, is_one in enumerate(is_media) if is_one]
            if count:
                end = num_prompt - num_answered
                prompt_lens.append(sum(at < end or is_one for at, is_one in zip(positions, is_media, strict=True)))
            start += count
        assert rows.host_prompt_lens == tuple(prompt_lens)
        assert [row for stretch in rows.host_media_rows for row in stretch] == media_rows
        assert (rows.last_visible is None) == (batch.rows.host_media_rows == ())


# Logits are of size 1. Tiles of other shapes sum in other orders, and random weights with attention scores of size 10
# can make much of it: for some prompts, rounding the embedding once more moves a logit by 3e-3. A neighbour's row or
# key would move it by about 1.
ROUNDING = 2e-2


@dataclass
class Company:
    """Several sequences in one arena, each with pages of its own; everything else is NaN."""

    model: Gemma
    layout: KVLayout
    arena: KVArena
    tables: list[tuple[list[int], ...]]
    num_computed: list[int]

    @classmethod
    def of(cls, model: Gemma, lengths: list[int], seed: int) -> "Company":
        layout = make_kv_layout(model.spec, dtype="float32", min_tokens_per_block=3)
        counts = [[-(-length // group.tokens_per_block) for group in layout.groups] for length in lengths]
        pages = list(range(1, 1 + sum(map(sum, counts))))
        random.Random(seed).shuffle(pages)
        arena = KVArena(layout, 1 + len(pages), CPU)
        arena.poison(torch.arange(1 + len(pages)))
        tables = [tuple([pages.pop() for _ in range(count)] for count in row) for row in counts]
        return cls(model, layout, arena, tables, [0] * len(lengths))

    @torch.inference_mode()
    def step(self, parts: dict[int, list[int]], wants_logits: set[int], *, skip_upper: bool) -> dict[int, Tensor]:
        """Run some tokens of some sequences; the last row's logits of those that want them."""
        sequences = [
            SequenceRows(
                token_ids=token_ids,
                num_computed=self.num_computed[index],
                block_tables=self.tables[index],
                num_logit_rows=int(index in wants_logits),
            )
            for index, token_ids in parts.items()
        ]
        batch = make_batch_of(sequences, CPU, skip_upper=skip_upper)
        logits = self.model.logits(self.model(batch, self.arena))
        for index, token_ids in parts.items():
            self.num_computed[index] += len(token_ids)
        return dict(zip([index for index in parts if index in wants_logits], logits, strict=True))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gemma]:
    def make(name: str) -> Gemma:
        config = SHRUNK[name] | {"num_hidden_layers": 6, "layer_types": pattern(2, 6), "intermediate_size": 24}
        config["num_kv_shared_layers"] = 3 if config.get("num_kv_shared_layers") else 0
        config["activation_sparsity_pattern"] = [0.5] * 3 + [0.0] * 3
        # Every expert is chosen: where two are nearly as probable, the last bit would decide between them.
        config["top_k_experts"] = config.get("num_experts")
        folder: Path = write_config(tmp_path_factory.mktemp("dummy"), config)
        return load(folder, load_format="dummy", dtype="float32").model

    return {name: make(name) for name in FAMILIES}


@settings(max_examples=30)
@given(
    name=st.sampled_from(FAMILIES),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    skip_upper=st.booleans(),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_in_company_as_alone(
    models: dict[str, Gemma], name: str, lengths: list[int], skip_upper: bool, seed: int, data: st.DataObject
) -> None:
    """Any cutting into steps, any neighbours: the last logits of a prompt are those of one pass alone."""
    model = models[name]
    chooser = random.Random(seed)
    prompts = [[chooser.randrange(64) for _ in range(length)] for length in lengths]
    company = Company.of(model, lengths, seed)
    left = {index: list(prompt) for index, prompt in enumerate(prompts)}
    got: dict[int, Tensor] = {}
    while left:
        running = data.draw(st.sets(st.sampled_from(sorted(left)), min_size=1))
        parts = {index: left[index][: data.draw(st.integers(1, len(left[index])))] for index in sorted(running)}
        ending = {index for index, part in parts.items() if len(part) == len(left[index])}
        got |= company.step(parts, ending, skip_upper=skip_upper)
        left = {index: rest[len(parts.get(index, ())) :] for index, rest in left.items() if index not in ending}
    for index, prompt in enumerate(prompts):
        alone = PagedSequence(model, len(prompt)).run(prompt)[-1]
        torch.testing.assert_close(got[index], alone, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_in_which_nobody_wants_logits(models: dict[str, Gemma], name: str) -> None:
    company = Company.of(models[name], [20, 5], seed=0)
    assert company.step({0: list(range(10)), 1: [1, 2, 3]}, set(), skip_upper=True) == {}
    after = company.step({0: list(range(10, 20))}, {0}, skip_upper=True)[0]
    alone = PagedSequence(models[name], 20).run(list(range(20)))[-1]
    torch.testing.assert_close(after, alone, atol=ROUNDING, rtol=0)
