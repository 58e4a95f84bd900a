"""Rows looked up in a table of eight bits, in Triton: one kernel for what is eight in PyTorch.

A table has such codes where a head is tied to it and quantized.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.rms_norm.triton import row_tile


def embed(token_ids: Tensor, matrix: QuantizedMatrix, scale: float, dtype: torch.dtype) -> Tensor:
    codes, scales = matrix.codes, matrix.scales
    token_ids = token_ids.contiguous()
    width, num_rows = matrix.num_inputs, token_ids.numel()
    assert codes.stride(1) == 1, "the codes of a row are contiguous"
    out = torch.empty((*token_ids.shape, width), dtype=dtype, device=codes.device)
    if num_rows == 0:
        return out
    tile = row_tile(width, num_rows)
    embed_codes_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
        token_ids, codes, scales, out, num_rows, matrix.num_rows, codes.stride(0), scales.stride(0), scale,
        WIDTH=width, ROWS=tile.num_rows, BLOCK=tile.block, num_warps=tile.num_warps,
        **launch_options(codes.device),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["token_ids"])
def embed_codes_kernel(
    token_ids, codes, scales, out, num_rows, num_ids, code_stride, scale_stride, scale,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    start_after_previous(IS_DEPENDENT)
    ids = tl.load(token_ids + rows, mask=rows < num_rows, other=0).to(tl.int64)
    ids = tl.where(ids < num_ids, ids, 0)
    code = tl.load(codes + ids * code_stride + columns, mask=mask, other=0.0).to(tl.float32)
    # Rounded twice, as rows are that are looked up and then scaled.
    value = (code * tl.load(scales + ids * scale_stride).to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + rows * WIDTH + columns, (value.to(tl.float32) * scale).to(out.dtype.element_ty), mask=mask)
