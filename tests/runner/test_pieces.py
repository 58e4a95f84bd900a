"""Lower layers in pieces compute what they compute in one go, whatever fills a step up to its size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kv_layout import make_kv_layout
from facet.layers.attention import LayerReads
from facet.layers.kv_arena import KVArena
from facet.model.families import read_model_spec
from facet.model.gemma import Gemma
from facet.progress import Silent
from facet.runner.batch import Chunks, make_batch
from facet.runner.pieces import SIZES, LowerPieces, PieceBuffers, sizes_up_to
from facet.runner.recording import NoRecorder, Pause, ReplayableInPieces
from tests.model.paged_model import load
from tests.published_configs import text_only
from tests.tiny_checkpoints import SHRUNK, write_config

CPU = torch.device("cpu")
FAMILIES = ("Gemma 4 E4B", "Gemma 4 26B-A4B", "Gemma 4 31B", "Gemma 3n E4B")
MAX_TOKENS = 48
NUM_SEQUENCES = 3
# Tokens of each sequence, step by step: runs of all lengths beside single rows, in steps that fill a size and do not.
STEPS = ((5, 1, 9), (1, 1, 3), (7, 1, 8), (1, 20, 1))
PIECE_SIZES = (4, 16, 24)
# The stream is of size 1. Products of more rows sum in another order, which moved it by 3e-5; a key or a row that is
# not a sequence's own moves it by about 1.
ROUNDING = 1e-3


@dataclass
class Watched(NoRecorder):
    """Notes what each pause of each replay was given."""

    replays: list[list[LayerReads]] = field(default_factory=list)

    def record_pieces(self, run: Callable[[Pause], None]) -> ReplayableInPieces:
        def watched(pause: Pause) -> None:
            seen: list[LayerReads] = []
            self.replays.append(seen)

            def noted(reads: LayerReads) -> None:
                seen.append(reads)
                pause(reads)

            run(noted)

        return super().record_pieces(watched)


@pytest.mark.parametrize("name", FAMILIES)
def test_pieces_equal_one_go(name: str, tmp_path: Path) -> None:
    # Every expert is chosen: where two are nearly as probable, the last bit would decide between them.
    write_config(tmp_path, SHRUNK[name] | {"top_k_experts": SHRUNK[name].get("num_experts")})
    model = load(tmp_path, load_format="dummy", dtype="float32", max_model_len=MAX_TOKENS).model
    num_attending = model.spec.last_owning_layer
    plain, in_pieces = make_arena(model), make_arena(model)
    tables = make_tables(model)
    buffers = PieceBuffers.make(model, max(PIECE_SIZES), block_tables=tables, scratch_seat=NUM_SEQUENCES)
    pieces = LowerPieces(model, in_pieces, buffers, PIECE_SIZES, num_layers=num_attending)
    recorder = Watched()
    with torch.inference_mode():
        pieces.capture(recorder, Silent())
        num_computed = np.zeros(NUM_SEQUENCES, np.int32)
        for number, counts in enumerate(STEPS):
            lens = np.array(counts, np.int32)
            chunks = Chunks(
                num_computed=num_computed.copy(),
                num_scheduled=lens,
                num_logit_rows=np.ones_like(lens),
                num_prompt=num_computed + lens,
                seats=np.arange(NUM_SEQUENCES, dtype=np.int32),
            )
            token_ids = torch.arange(int(lens.sum())) * 7 % 50 + number
            batch = make_batch(token_ids, chunks, tables, CPU, skip_upper=False)
            for station in buffers.stations.values():  # whatever an earlier step may have left
                station.attended.fill_(float("nan"))
            expected = model.lower(token_ids, batch.rows, plain, num_attending)
            got = pieces.lower(token_ids, batch.rows)
            torch.testing.assert_close(got, expected, rtol=0, atol=ROUNDING)
            size = next(size for size in PIECE_SIZES if size >= len(token_ids))
            assert bool(buffers.stream[..., :size, :].isfinite().all()), "rows that fill up stay finite"
            num_computed += lens
    assert len(recorder.replays) == len(STEPS)
    for replay in recorder.replays:
        # A graph is given these once and for all.
        assert list(map(memory_of, replay)) == list(map(memory_of, recorder.replays[0]))
        assert len(replay) == num_attending


def make_arena(model: Gemma) -> KVArena:
    """All NaN."""
    layout = make_kv_layout(model.spec, dtype="float32", min_tokens_per_block=4)
    num_blocks = 1 + sum(NUM_SEQUENCES * -(-MAX_TOKENS // group.tokens_per_block) for group in layout.groups)
    arena = KVArena(layout, num_blocks, CPU)
    arena.poison(torch.arange(num_blocks))
    return arena


def make_tables(model: Gemma) -> tuple[Tensor, ...]:
    """Blocks of their own for each sequence, and a last row of block 0, which is nobody's."""
    layout, first, tables = make_kv_layout(model.spec, dtype="float32", min_tokens_per_block=4), 1, []
    for group in layout.groups:
        num_blocks = -(-MAX_TOKENS // group.tokens_per_block)
        own = first + torch.arange(NUM_SEQUENCES * num_blocks, dtype=torch.int32).view(NUM_SEQUENCES, -1)
        tables.append(torch.cat((own, torch.zeros(1, num_blocks, dtype=torch.int32))))
        first += NUM_SEQUENCES * num_blocks
    return tuple(tables)


def memory_of(reads: LayerReads) -> tuple[object, ...]:
    recipe = reads.key_recipe
    derived = () if recipe is None else (recipe.weight.data_ptr(), recipe.cos_sin.data_ptr())
    return (reads.kind, reads.scale, reads.cache.keys.data_ptr(), *derived)


@pytest.mark.parametrize(
    ("name", "largest"), [("Gemma 4 E2B", 2048), ("Gemma 4 E4B", 2048), ("Gemma 4 26B-A4B", 2048), ("Gemma 4 31B", 512)]
)
@given(max_num_rows=st.integers(1, 3000))
def test_sizes_cover_steps_whose_launches_show(name: str, largest: int, max_num_rows: int) -> None:
    sizes = sizes_up_to(max_num_rows, read_model_spec(text_only(name)))
    assert sizes == SIZES[: len(sizes)]
    assert sizes[-1] >= min(max_num_rows, largest)
    assert sizes[-1] <= largest + 256
    assert len(sizes) == 1 or sizes[-2] < max_num_rows
