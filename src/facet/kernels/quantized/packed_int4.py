"""Products on a processor with matrices of 4-bit codes in groups, whose inputs are bfloat16 and not rounded.

PyTorch has a kernel for them that is vectorised for AVX2 and AVX-512. It wants codes in an order of its own, in which
they are put when a model is loaded, and computes (code - 8) * scale + shift with both numbers in bfloat16. Scales of
more digits, float16 ones for example, are the sum of two such numbers, and a product is then the sum of two. It gives a
row the same bits in any company.

Products of a fine and a coarse scale, as GGUF's Q4_K has them, and minimums may have more digits than two such numbers.
The last of them are left out of products, and the scales are kept as they were beside them.

The kernel takes its time for every row: for many, tiles of the matrix are brought to bfloat16 instead, or to float32 on
a processor that has no products of bfloat16.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from facet.kernels.quantized.cpu import has_bfloat16_products
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.reference import TILE_VALUES
from facet.matrix_format import MatrixFormat

# On one core with AVX-512, 2048 x 2560 with float16 scales: 0.9 ms for a row, and 0.37 for each other. By values it is
# 12 and 0.1. Without this kernel, tiles brought to float32 take 8 ms for a row.
MAX_FEW_ROWS = 32

_OFFSET = 8  # of codes without a sign
_GROUPS = (32, 64, 128, 256)
_OUTPUTS = {"AVX512": 64, "AVX2": 32}  # in a block: two of them share each byte


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedInt4:
    """A matrix [outputs, inputs] whose bytes lie in blocks of outputs, input by input: the lower half of a byte is of
    an output in the first half of its block, the upper half of the one as far behind in the second."""

    format: MatrixFormat  # as it was before
    codes: Tensor  # uint8 [outputs, inputs / 2]
    factors: Tensor  # bfloat16 [1 or 2, groups, outputs, 2]: scales and shifts. The sum of both is meant
    order: Tensor | None = None
    # The scales as they were, where factors have fewer digits.
    scales: Tensor | None = None
    coarse_scales: Tensor | None = None
    minimums: Tensor | None = None
    coarse_minimums: Tensor | None = None

    @property
    def num_rows(self) -> int:
        return self.codes.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.codes.shape[1] * 2

    def tensors(self) -> dict[str, Tensor]:
        order = {} if self.order is None else {"order": self.order}
        return {"codes": self.codes, "factors": self.factors, **order, **self.kept()}

    def kept(self) -> dict[str, Tensor]:
        named = {name: getattr(self, name) for name in _KEPT}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


_KEPT = ("scales", "coarse_scales", "minimums", "coarse_minimums")


def runs_on(device: torch.device) -> bool:
    return device.type == "cpu" and _block_outputs() is not None


def can_pack(format: MatrixFormat, shape: Sequence[int]) -> bool:
    """Whether a matrix has the form of the kernel, and comes back from it as it was."""
    is_known = format.codes == "int4" or (format.codes == "uint4" and format.has_zeros != format.has_minimums)
    has_short_scales = format.scales.dtype in ("bfloat16", "float16") and format.coarse_scales is None
    group, coarse = format.scales.group, format.coarse_scales
    return (
        is_known
        and (has_short_scales or (_keeps_scales(format) and not format.has_zeros))
        and not (format.rounds_outputs or format.rounding)
        and (coarse is None or (group is not None and coarse.group is not None and coarse.group % group == 0))
        and len(shape) == 2
        and shape[0] % max(_OUTPUTS.values()) == 0
        and group in _GROUPS
        and shape[1] % group == 0
    )


def packed_bytes(format: MatrixFormat, shape: Sequence[int]) -> int:
    num_rows, num_inputs = shape
    num_factors = _num_parts(format) * format.scales.count(num_inputs) * num_rows * 2
    kept = format.num_bytes(shape) - num_rows * num_inputs // 2 if _keeps_scales(format) else 0
    return num_rows * num_inputs // 2 + 2 * num_factors + kept + 4 * num_inputs * (format.is_reordered and not kept)


def pack(matrix: QuantizedMatrix) -> PackedInt4:
    block, num_inputs = _block(), matrix.num_inputs
    halves = torch.stack((matrix.codes & 15, matrix.codes >> 4), dim=-1).view(-1, 2, block // 2, num_inputs)
    codes = (halves[:, 0] | (halves[:, 1] << 4)).transpose(1, 2).contiguous().view(matrix.num_rows, -1)
    scales, minimums = matrix.scales_of_groups()
    shifts = torch.zeros_like(scales)
    if matrix.zeros is not None:
        shifts = (_OFFSET - matrix.zeros.float()) * scales
    elif minimums is not None:
        shifts = _OFFSET * scales - minimums
    rest = torch.stack((scales.t(), shifts.t()), dim=-1)
    parts = []
    for _ in range(_num_parts(matrix.format)):
        parts.append(rest.bfloat16())
        rest = rest - parts[-1].float()
    kept = {name: getattr(matrix, name) for name in _KEPT} if _keeps_scales(matrix.format) else {}
    return PackedInt4(format=matrix.format, codes=codes, factors=torch.stack(parts), order=matrix.order, **kept)


def unpack(packed: PackedInt4) -> QuantizedMatrix:
    """The matrix as it was before, bit for bit; but for zeros beside a scale of 0, which say nothing."""
    codes = torch.cat(_halves(packed.codes.view(-1, packed.num_inputs, _block() // 2)), dim=-1)
    numbers = codes.transpose(1, 2).reshape(packed.num_rows, -1)
    codes = numbers[:, 0::2] | (numbers[:, 1::2] << 4)
    if packed.scales is not None:
        return QuantizedMatrix(format=packed.format, codes=codes, order=packed.order, **packed.kept())
    scales, shifts = packed.factors.float().sum(0).transpose(0, 1).unbind(-1)
    zeros = None
    if packed.format.has_zeros:
        zeros = (_OFFSET - torch.where(scales == 0, 0.0, shifts / scales)).round().to(torch.uint8)
    return QuantizedMatrix(
        format=packed.format,
        codes=codes,
        scales=scales.to(getattr(torch, packed.format.scales.dtype)),
        zeros=zeros,
        order=packed.order,
    )


def multiply(x: Tensor, matrix: PackedInt4, rows: slice | None = None, most_few_rows: float = MAX_FEW_ROWS) -> Tensor:
    """x [rows, inputs] @ values^T, in bfloat16, or `rows` of the outputs alone. `most_few_rows`: infinity where company
    must change no bit.
    """
    if matrix.order is not None:
        x = x[:, matrix.order.long()]
    matrix, inside = _blocks_of(matrix, rows)
    if len(x) <= most_few_rows:
        return _multiply_codes(x.contiguous(), matrix)[:, inside]
    dtype = x.dtype if has_bfloat16_products() else torch.float32
    inputs = x.to(dtype)
    return torch.cat([inputs @ values.to(dtype) for values in _tiles(matrix)], dim=1)[:, inside].to(x.dtype)


def _multiply_codes(x: Tensor, matrix: PackedInt4) -> Tensor:
    group = matrix.format.scales.group
    assert group is not None
    products: list[Tensor] = [
        torch.ops.aten._weight_int4pack_mm_for_cpu(x, matrix.codes, group, factors) for factors in matrix.factors
    ]
    return products[0] if len(products) == 1 else (products[0].float() + products[1].float()).to(x.dtype)


def _tiles(matrix: PackedInt4) -> Iterator[Tensor]:
    """Values [inputs, outputs] in float32, some outputs at a time."""
    block, num_inputs = _block(), matrix.num_inputs
    num_groups = matrix.factors.shape[1]
    size = max(1, TILE_VALUES // (num_inputs * block)) * block
    for start in range(0, matrix.num_rows, size):
        rows = slice(start, min(start + size, matrix.num_rows))
        factors = matrix.factors[:, :, rows].float().sum(0)
        scales, shifts = factors.movedim(-1, 0).unsqueeze(2).contiguous()  # [groups, 1, outputs]
        numbers = torch.empty(num_inputs, scales.shape[-1] // block, 2, block // 2)
        for half, codes in enumerate(_halves(matrix.codes[rows].view(-1, num_inputs, block // 2))):
            numbers[:, :, half] = codes.transpose(0, 1)
        values = numbers.view(num_groups, -1, scales.shape[-1]).mul_(scales).add_(shifts - _OFFSET * scales)
        yield values.flatten(0, 1)


def _halves(codes: Tensor) -> tuple[Tensor, Tensor]:
    return codes & 15, codes >> 4


def _blocks_of(matrix: PackedInt4, rows: slice | None) -> tuple[PackedInt4, slice]:
    """The blocks that have these outputs, and where they are inside."""
    if rows is None:
        return matrix, slice(None)
    block = _block()
    start, end, _ = rows.indices(matrix.num_rows)
    first = start // block * block
    blocks = slice(first, -(-end // block) * block)
    some = PackedInt4(
        format=matrix.format, codes=matrix.codes[blocks], factors=matrix.factors[:, :, blocks].contiguous()
    )
    return some, slice(start - first, end - first)


def _keeps_scales(format: MatrixFormat) -> bool:
    return format.coarse_scales is not None or format.has_minimums


def _num_parts(format: MatrixFormat) -> int:
    """How many numbers of eight binary digits make a scale. A shift has four digits more than its scale."""
    has_one = format.scales.dtype == "bfloat16" and not (format.has_zeros or _keeps_scales(format))
    return 1 if has_one else 2


def _block() -> int:
    block = _block_outputs()
    assert block is not None, "the kernel is there"
    return block


@cache
def _block_outputs() -> int | None:
    """How many outputs a block has in the order of PyTorch's kernel here. None: there is no fast one, or its order is
    not known."""
    block = _OUTPUTS.get(torch.backends.cpu.get_cpu_capability())
    if block is None:
        return None
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (2 * block, 32), dtype=torch.int32, generator=generator)
    try:
        theirs = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
    except (AttributeError, RuntimeError):
        return None
    first, second = codes.view(2, 2, block // 2, 32).transpose(2, 3).to(torch.uint8).unbind(1)
    return block if torch.equal(theirs.flatten(), (first | (second << 4)).flatten()) else None
