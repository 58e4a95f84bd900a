"""Computes where each row's keys and values are stored, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.forward_batch import AttentionRows

_ROWS_PER_PROGRAM = 128


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["positions", "seats", "block_table"])
def _row_places_kernel(
    positions,
    seats,
    block_table,
    blocks,
    slots,
    num_rows,
    table_stride,
    TOKENS_PER_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    position = tl.load(positions + rows, mask=is_row, other=0)
    seat = tl.load(seats + rows, mask=is_row, other=0).to(tl.int64)
    block = tl.load(block_table + seat * table_stride + position // TOKENS_PER_BLOCK, mask=is_row, other=0)
    tl.store(blocks + rows, block.to(tl.int64), mask=is_row)
    tl.store(slots + rows, (position % TOKENS_PER_BLOCK).to(tl.int64), mask=is_row)


def row_places(rows: AttentionRows, block_table: Tensor, *, tokens_per_block: int) -> tuple[Tensor, Tensor]:
    """See `reference.py`."""
    num_rows = rows.positions.shape[0]
    blocks, slots = torch.empty(2, num_rows, dtype=torch.int64, device=block_table.device)
    _row_places_kernel[(triton.cdiv(num_rows, _ROWS_PER_PROGRAM),)](
        rows.positions,
        rows.seats,
        block_table,
        blocks,
        slots,
        num_rows,
        block_table.stride(0),
        TOKENS_PER_BLOCK=tokens_per_block,
        ROWS=_ROWS_PER_PROGRAM,
        num_warps=4,
    )
    return blocks, slots
