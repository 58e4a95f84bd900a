"""Products on a GPU with matrices of eight bits and one scale for each row.

Where a format rounds inputs too, codes are multiplied by codes, on tensor cores made for them, and both scales are
applied to the sums. Such a product takes `RoundedRows`, which norms and activations before it can give. Others are
rounded by a kernel before the product. A product in Triton that rounded a single row as it read it took 1 to 6 us
longer than both on an H200. Where inputs are not rounded, codes are widened on their way to the tensor cores; for few
rows of a head on a Hopper GPU in registers (`few_rows_kernel.py`), for a single row elsewhere without tensor cores
(`widened.py`). The activation that follows is in the same kernel. On Hopper GPUs few rows can go through rings
(`ring_kernel.py`), where a configuration has one: these round a single row while the matrix is on its way. Many rows of
fp8 have a kernel there, too, for sums in an order that few rows have (`many_rows_kernel.py`).

Sums of integers are exact. Others are of another order in another configuration: `ChooseConfig` is how a model says
whether that may depend on the number of rows. Those of codes times codes of fp8 depend on the shares into which a row
of the matrix is cut and on the width of a tile, and on nothing else, not even on the kernel.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from facet.kernels.geglu import geglu
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.moe.config import TileConfig, invariant_tiles
from facet.kernels.per_layer_input import gate_per_layer_input
from facet.kernels.quantized.eight_bits.config import (
    MOST_ROWS_AT_ONCE,
    RING_ROUNDS,
    ChooseConfig,
    Config,
    Ring,
    Sums,
    Tiles,
    choose_config,
    choose_in_one_order,
    ring_of,
)
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.rounding import row_codes
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows, RowCodes, Rows, tensor_of
from facet.matrix_format import MatrixFormat

__all__ = [
    "ChooseConfig",
    "Config",
    "Ring",
    "Sums",
    "Tiles",
    "choose_config",
    "choose_in_one_order",
    "embed",
    "gated_input_linear",
    "geglu_linear",
    "invariant_run_experts",
    "linear",
    "ring_of",
    "round_rows",
    "rounded_geglu_linear",
    "row_codes",
    "run_experts",
    "runs_on",
    "serves",
]

HOPPER = (9, 0)
# Rows of codes start at multiples of this many bytes, as the widest loads want them.
_ALIGNMENT = 16


def runs_on(device: torch.device, format: MatrixFormat) -> bool:
    """Whether this is a GPU that multiplies such codes. FP8 needs Hopper: earlier ones have no such product by rows."""
    if device.type != "cuda":
        return False
    return format.codes != "fp8" or torch.cuda.get_device_capability(device) >= HOPPER


def serves(format: MatrixFormat, num_inputs: int) -> bool:
    """Whether these kernels multiply such matrices."""
    is_known = format.rounding in (None, "int8_token", "fp8_token")
    is_plain = format.has_row_scales and not (format.is_reordered or format.rounds_outputs)
    return format.code_bits == 8 and is_known and is_plain and num_inputs % _ALIGNMENT == 0


def round_rows(x: Tensor | MeasuredRows, format: MatrixFormat) -> RoundedRows:
    """Each row of codes by its largest magnitude, as `rounding.py` says."""
    # Imported here and below: no Triton without a GPU.
    from facet.kernels.quantized.eight_bits.row_rounding import round_rows

    return round_rows(x, row_codes(format))


def embed(token_ids: Tensor, matrix: QuantizedMatrix, scale: float, dtype: torch.dtype) -> Tensor:
    """Rows of a table in `dtype`, times a scale; ids past its end take row 0."""
    from facet.kernels.quantized.eight_bits.embedding import embed

    return embed(token_ids, matrix, scale, dtype)


def linear(x: Rows, matrix: QuantizedMatrix, choose: ChooseConfig) -> Tensor:
    ring = _ring_that_rounds(x, matrix, choose)
    if ring is not None:
        return ring.kernels.linear(ring.row, matrix, ring.config)
    x = _inputs(x, matrix)
    config = _choose(x, matrix, choose, is_plain=True)
    if config is None:
        assert isinstance(x, RoundedRows)
        return _scaled_mm(x, matrix)
    if config.tiles is not None and isinstance(x, Tensor) and runs_on_hopper(x.device):
        from facet.kernels.quantized.eight_bits import few_rows  # imports Gluon

        if few_rows.can_run(x, matrix):
            return few_rows.linear(x, matrix, config.tiles)
    if config.is_vector:
        from facet.kernels.quantized.eight_bits import widened

        assert isinstance(x, Tensor)
        return widened.linear(x, matrix, config)
    kernels, taken = _kernels_of(config, x, matrix)
    return kernels.linear(x, matrix, taken)


def geglu_linear(x: Rows, matrix: QuantizedMatrix, choose: ChooseConfig) -> Tensor:
    """gelu_tanh(gate) * up, the first and the second half of the matrix's outputs."""
    x = _inputs(x, matrix)
    config = _choose(x, matrix, choose)
    if config is None:
        assert isinstance(x, RoundedRows)
        return geglu(_scaled_mm(x, matrix))
    kernels, taken = _kernels_of(config, x, matrix)
    return kernels.geglu_linear(x, matrix, taken)


def rounded_geglu_linear(x: Rows, matrix: QuantizedMatrix, choose: ChooseConfig, codes: RowCodes) -> Rows:
    """Like `geglu_linear`, for a product that rounds its inputs: the result is rounded, where one kernel does both, or
    measured."""
    x = _inputs(x, matrix)
    config = _choose(x, matrix, choose)
    if config is None:
        assert isinstance(x, RoundedRows)
        from facet.kernels.quantized.eight_bits.row_rounding import round_geglu

        return round_geglu(_scaled_mm(x, matrix), codes)
    kernels, taken = _kernels_of(config, x, matrix)
    if tensor_of(x).shape[0] > MOST_ROWS_AT_ONCE:
        return kernels.geglu_linear(x, matrix, taken)
    return kernels.measured_geglu_linear(x, matrix, taken)


def gated_input_linear(x: Rows, matrix: QuantizedMatrix, per_layer_input: Tensor, choose: ChooseConfig) -> Tensor:
    """gelu_tanh(x @ values^T) * per_layer_input."""
    ring = _ring_that_rounds(x, matrix, choose)
    if ring is not None:
        return ring.kernels.gated_input_linear(ring.row, matrix, per_layer_input, ring.config)
    x = _inputs(x, matrix)
    config = _choose(x, matrix, choose)
    if config is None:
        assert isinstance(x, RoundedRows)
        return gate_per_layer_input(_scaled_mm(x, matrix), per_layer_input)
    kernels, taken = _kernels_of(config, x, matrix)
    return kernels.gated_input_linear(x, matrix, per_layer_input, taken)


def run_experts(
    x: Tensor | RoundedRows, weights: Tensor, chosen: Tensor, gate_up: QuantizedMatrix, down: QuantizedMatrix
) -> Tensor:
    """Sum over a row's chosen experts of weight * down(geglu(gate_up(x))), inputs rounded before either product."""
    return _run_experts(x, weights, chosen, gate_up, down, None)


def _run_experts(
    x: Tensor | RoundedRows,
    weights: Tensor,
    chosen: Tensor,
    gate_up: QuantizedMatrix,
    down: QuantizedMatrix,
    tiles: tuple[TileConfig, TileConfig] | None,
) -> Tensor:
    from facet.kernels.moe import triton
    from facet.kernels.moe.triton_groups import ExpertMatrices

    return triton.run_rounded_experts(
        x if isinstance(x, RoundedRows) else round_rows(x, gate_up.format),
        weights,
        chosen,
        ExpertMatrices(gate_up.codes, gate_up.scales),
        ExpertMatrices(down.codes, down.scales),
        lambda hidden: round_rows(hidden, down.format),
        tiles,
    )


def invariant_run_experts(
    x: Tensor | RoundedRows, weights: Tensor, chosen: Tensor, gate_up: QuantizedMatrix, down: QuantizedMatrix
) -> Tensor:
    """Like `run_experts`, but a row's bits do not depend on which others chose the same experts."""
    if _sums_of(gate_up.format) == _sums_of(down.format) == "exact":
        return run_experts(x, weights, chosen, gate_up, down)
    tiles = invariant_tiles(chosen.numel(), len(gate_up.codes), gate_up.codes.element_size())
    return _run_experts(x, weights, chosen, gate_up, down, tiles)


def _inputs(x: Rows, matrix: QuantizedMatrix) -> Tensor | RoundedRows:
    if isinstance(x, RoundedRows):
        return x
    return tensor_of(x) if matrix.format.rounding is None else round_rows(x, matrix.format)


def _choose(
    x: Tensor | RoundedRows, matrix: QuantizedMatrix, choose: ChooseConfig, *, is_plain: bool = False
) -> Config | None:
    return choose(tensor_of(x).shape[0], matrix.num_rows, matrix.num_inputs, _sums_of(matrix.format), is_plain)


def _sums_of(format: MatrixFormat) -> Sums:
    if format.rounding is None:
        return "widened"
    return "fp8" if format.codes == "fp8" else "exact"


class _Kernels(Protocol):
    """The products of one kernel. A `config` is of its own kind."""

    def linear(self, x: Any, matrix: QuantizedMatrix, config: Any, /) -> Tensor: ...
    def geglu_linear(self, x: Any, matrix: QuantizedMatrix, config: Any, /) -> Tensor: ...
    def measured_geglu_linear(self, x: Any, matrix: QuantizedMatrix, config: Any, /) -> MeasuredRows: ...
    def gated_input_linear(self, x: Any, matrix: QuantizedMatrix, given: Tensor, config: Any, /) -> Tensor: ...


def _kernels_of(config: Config, x: Tensor | RoundedRows, matrix: QuantizedMatrix) -> tuple[_Kernels, Config | Ring]:
    """The kernels and what they take: a ring, if there is one and it can run, or the configuration."""
    if config.ring is not None and isinstance(x, RoundedRows) and runs_on_hopper(x.codes.device):
        from facet.kernels.quantized.eight_bits import ring  # imports Gluon

        if ring.can_run(x, matrix):
            return ring, config.ring
    if config.by_warpgroups and isinstance(x, RoundedRows) and runs_on_hopper(x.codes.device):
        from facet.kernels.quantized.eight_bits import many_rows  # imports Gluon

        if many_rows.can_run(x, matrix):
            return many_rows, config
    from facet.kernels.quantized.eight_bits import triton

    return triton, config


class _RoundingRing(NamedTuple):
    kernels: _Kernels
    row: MeasuredRows
    config: Ring


def _ring_that_rounds(x: Rows, matrix: QuantizedMatrix, choose: ChooseConfig) -> _RoundingRing | None:
    """The ring for a single row that is rounded by the kernel that multiplies it. None: the row is rounded before."""
    if isinstance(x, RoundedRows) or matrix.format.rounding is None or not RING_ROUNDS or len(tensor_of(x)) != 1:
        return None
    config = choose(1, matrix.num_rows, matrix.num_inputs, _sums_of(matrix.format))
    if config is None or config.ring is None or not runs_on_hopper(matrix.codes.device):
        return None
    from facet.kernels.quantized.eight_bits import ring  # imports Gluon

    row = MeasuredRows(x, x) if isinstance(x, Tensor) else x
    return _RoundingRing(ring, row, config.ring) if ring.can_run(row, matrix) else None


def _scaled_mm(x: RoundedRows, matrix: QuantizedMatrix) -> Tensor:
    """PyTorch's product of fp8 rows, each with its scale."""
    return torch._scaled_mm(
        x.codes, matrix.codes.t(), scale_a=x.scales, scale_b=matrix.scales.float().t(), out_dtype=x.dtype
    )
