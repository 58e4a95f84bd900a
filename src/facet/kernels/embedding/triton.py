"""The scaled embedding in Triton: unscaled rows are never written to memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.rms_norm.triton import row_tile


def embed(token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
    token_ids = token_ids.contiguous()
    width = table.shape[-1]
    out = torch.empty((*token_ids.shape, width), dtype=table.dtype, device=table.device)
    num_rows = token_ids.numel()
    tile = row_tile(width, num_rows)
    _embed_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
        token_ids, table, out, num_rows, table.shape[0], table.stride(0), scale,
        WIDTH=width, ROWS=tile.num_rows, BLOCK=tile.block, num_warps=tile.num_warps,
        **launch_options(table.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["token_ids"])
def _embed_kernel(
    token_ids, table, out, num_rows, vocab_size, table_stride, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    start_after_previous(IS_DEPENDENT)
    ids = tl.load(token_ids + rows, mask=rows < num_rows, other=0).to(tl.int64)
    # The reference refuses an id the table does not have. A kernel cannot, but must not read beyond the table: zeros.
    is_known = (ids >= 0) & (ids < vocab_size)
    value = tl.load(table + ids * table_stride + columns, mask=mask & is_known, other=0.0).to(tl.float32)
    tl.store(out + rows * WIDTH + columns, (value * scale).to(out.dtype.element_ty), mask=mask)
