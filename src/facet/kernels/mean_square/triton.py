"""The mean square in Triton, summed in float32 and in the same order whatever the number of rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.rms_norm.triton import tile_of_few_rows


def mean_square(x: Tensor) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1]
    out = torch.empty((*x.shape[:-1], 1), dtype=x.dtype, device=x.device)
    num_rows = out.numel()
    tile = tile_of_few_rows(width)
    if num_rows:
        _mean_square_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
            x, out, num_rows, WIDTH=width, ROWS=tile.num_rows, BLOCK=tile.block, num_warps=tile.num_warps
        )
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _mean_square_kernel(x, out, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    mask = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    value = tl.load(x + rows[:, None] * WIDTH + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, axis=1) / WIDTH
    tl.store(out + rows, mean.to(out.dtype.element_ty), mask=rows < num_rows)
