"""What products with matrices in the order of their kernels have in common, whatever their codes are."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import geglu
from facet.kernels.per_layer_input import gate_per_layer_input

TILE_OUT = 16  # outputs
# A slice in bfloat16: large enough for cuBLAS, and little beside a model.
_SLICE_BYTES = 64 << 20


class Shuffled(Protocol):
    @property
    def is_gated(self) -> bool:
        """Whether gates and ups are interleaved, so that their GeGLU is all that can be computed."""

    @property
    def num_tiles(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_inputs(self) -> int: ...
    def rows(self, rows: slice) -> Self: ...


Matrix = TypeVar("Matrix", bound=Shuffled)


class Operands(NamedTuple):
    x: Tensor
    gates: Tensor  # the per-layer input; x where there is none
    gate_stride: int
    output: Tensor
    constants: dict[str, bool]  # say what becomes of sums


def operands(x: Tensor, matrix: Shuffled, per_layer_input: Tensor | None) -> Operands:
    """Rows that begin where 16 bytes can be loaded at once, and room for what is made of them."""
    assert x.dtype == torch.bfloat16, "pairs of bfloat16 numbers are what a word has"
    assert per_layer_input is None or not matrix.is_gated, "gates and ups are interleaved for a GeGLU alone"
    if x.stride(1) != 1 or x.stride(0) % 8 != 0:
        x = x.contiguous()
    if per_layer_input is not None and per_layer_input.stride(1) != 1:
        per_layer_input = per_layer_input.contiguous()
    width = TILE_OUT // 2 if matrix.is_gated else TILE_OUT
    return Operands(
        x=x,
        gates=x if per_layer_input is None else per_layer_input,
        gate_stride=0 if per_layer_input is None else per_layer_input.stride(0),
        output=torch.empty(x.shape[0], matrix.num_tiles * width, dtype=x.dtype, device=x.device),
        constants={"IS_GATED": matrix.is_gated, "HAS_GATED_INPUT": per_layer_input is not None},
    )


def multiply_values(
    x: Tensor, matrix: Matrix, per_layer_input: Tensor | None, dequantize: Callable[[Matrix, torch.dtype], Tensor]
) -> Tensor:
    """Multiplies as kernels do, but by values that are made of codes first, slice by slice."""

    def product(part: Matrix) -> Tensor:
        products = functional.linear(x, dequantize(part, x.dtype))
        return geglu(products) if matrix.is_gated else products

    parts = [product(part) for part in slices(matrix)]
    products = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return products if per_layer_input is None else gate_per_layer_input(products, per_layer_input)


def slices(matrix: Matrix) -> Iterator[Matrix]:
    size = max(1, _SLICE_BYTES // (2 * matrix.num_inputs * TILE_OUT)) * TILE_OUT
    for start in range(0, matrix.num_rows, size):
        yield matrix.rows(slice(start, min(start + size, matrix.num_rows)))
