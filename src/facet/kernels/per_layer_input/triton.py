"""Per-layer inputs in Triton. A row here is one layer's input of one token: short, so a program takes several.

Values are rounded to the activations' type wherever the reference, whose every operation writes a tensor, rounds them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous
from facet.kernels.geglu.triton import gelu_tanh
from facet.kernels.rms_norm.triton import load_weight, normalised, rounded, row_tile, rows_in_runs


def mix_looked_up_inputs(
    context: Tensor,
    token_ids: Tensor,
    table: Tensor,
    norm_weight: Tensor,
    *,
    first_column: int,
    token_scale: float,
    context_scale: float,
    eps: float,
) -> Tensor:
    context, token_ids = context.contiguous(), token_ids.contiguous()
    out = torch.empty_like(context)
    num_layers, width = context.shape[1:]
    num_rows = context.shape[0] * num_layers
    tile = row_tile(width, num_rows)
    _mix_looked_up_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
        context, token_ids, table, norm_weight, out, num_rows, num_layers, table.shape[0], table.stride(0),
        first_column, token_scale, context_scale, eps,
        WIDTH=width, ROWS=tile.num_rows, BLOCK=tile.block, num_warps=tile.num_warps,
        **launch_options(context.device),
    )  # fmt: skip
    return out


def gate_per_layer_input(gate: Tensor, per_layer_input: Tensor) -> Tensor:
    gate, per_layer_input = rows_in_runs(gate), rows_in_runs(per_layer_input)
    num_rows, width = gate.shape[0], gate.shape[-1]
    out = torch.empty((num_rows, width), dtype=gate.dtype, device=gate.device)
    tile = row_tile(width, num_rows)
    _gate_kernel[(triton.cdiv(num_rows, tile.num_rows),)](
        gate, per_layer_input, out, num_rows, gate.stride(0), per_layer_input.stride(0),
        WIDTH=width, ROWS=tile.num_rows, BLOCK=tile.block, num_warps=tile.num_warps,
        **launch_options(gate.device),
    )  # fmt: skip
    return out


@triton.jit
def _store_mixed(out, places, mask, context, token, weight, context_scale, eps, WIDTH: tl.constexpr):
    scaled = rounded(context * context_scale, out)
    normed = rounded(normalised(scaled, eps, WIDTH) * weight, out)
    mixed = rounded(normed + token, out) * 0.7071067811865476
    tl.store(out + places, mixed.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def _mix_looked_up_kernel(
    context, token_ids, table, weight, out, num_rows, num_layers, vocab_size, table_stride,
    first_column, token_scale, context_scale, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    places = rows.to(tl.int64) * WIDTH + columns
    factor = load_weight(weight, columns, mask)
    start_after_previous(IS_DEPENDENT)
    from_context = tl.load(context + places, mask=mask, other=0.0).to(tl.float32)
    ids = tl.load(token_ids + rows // num_layers, mask=rows < num_rows, other=0).to(tl.int64)
    # A negative id means nothing here, but must not read before the table.
    ids = tl.where((ids >= 0) & (ids < vocab_size), ids, 0)
    table_places = ids * table_stride + first_column + rows % num_layers * WIDTH + columns
    from_table = tl.load(table + table_places, mask=mask, other=0.0).to(tl.float32)
    from_token = rounded(from_table * token_scale, out)
    _store_mixed(out, places, mask, from_context, from_token, factor, context_scale, eps, WIDTH)


@triton.jit(do_not_specialize=["num_rows"])
def _gate_kernel(
    gate, per_layer_input, out, num_rows, gate_stride, input_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < num_rows) & (columns < WIDTH)
    start_after_previous(IS_DEPENDENT)
    opening = tl.load(gate + rows * gate_stride + columns, mask=mask, other=0.0).to(tl.float32)
    let_in = tl.load(per_layer_input + rows * input_stride + columns, mask=mask, other=0.0).to(tl.float32)
    product = rounded(gelu_tanh(opening), out) * let_in
    tl.store(out + rows * WIDTH + columns, product.to(out.dtype.element_ty), mask=mask)
