"""The sparse gated activation in Triton: one program per row, in the same order whatever the number of rows.

Values are rounded to the activations' type wherever the reference, whose every operation writes a tensor, rounds them.
"""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
# mypy: disallow-untyped-calls=False

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.geglu.triton import gelu_tanh
from facet.kernels.rms_norm.triton import rounded, tile_of_few_rows


def sparse_geglu(gate_up: Tensor, cutoff_deviations: float) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    num_rows = out.numel() // width
    tile = tile_of_few_rows(width)
    if num_rows:
        _sparse_geglu_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
            gate_up, out, num_rows, cutoff_deviations,
            WIDTH=width, ROWS=tile.num_rows, BLOCK=tile.block, num_warps=tile.num_warps,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _sparse_geglu_kernel(
    gate_up, out, num_rows, cutoff_deviations, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    start = gate_up + rows * (2 * WIDTH) + columns
    gate = tl.load(start, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(start + WIDTH, mask=mask, other=0.0).to(tl.float32)
    mean = (tl.sum(gate, axis=1) / WIDTH)[:, None]
    away = tl.where(mask, gate - mean, 0.0)
    deviation = rounded(tl.sqrt(tl.sum(away * away, axis=1) / WIDTH), out)[:, None]
    cut = rounded(rounded(mean, out) + rounded(deviation * cutoff_deviations, out), out)
    kept = rounded(tl.maximum(gate - cut, 0.0), out)
    product = rounded(gelu_tanh(kept), out) * up
    tl.store(out + rows * WIDTH + columns, product.to(out.dtype.element_ty), mask=mask)
