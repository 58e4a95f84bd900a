"""Products with quantized matrices on a processor, by what it has.

Codes of eight bits with a scale for each row, whose inputs are rounded to eight bits too, are multiplied as integers
where the processor has instructions for that (VNNI, AMX). Without them such a product takes 7 to 16 times as long as
one in float32 (Arm without i8mm, 2048 x 2560), so there, and for every other format, tiles are brought to float32. That
adds 1.2 (int8), 5 (int4) and 7 ms (fp8) to the 1.2 to 148 that a product with 1 to 128 rows takes.

Where bfloat16 is multiplied faster, and inputs are bfloat16, so are tiles: values are rounded once more, to as many
digits as the result. On two cores of an EPYC 9005, 5120 x 1280 in groups of four bits, that takes 3.6, 3.9 and 14 ms
for 1, 16 and 512 rows, in float32 5.1, 7.9 and 50; the whole error is 2.2 thousandths, and 1.7. In FP8 it takes 2.0,
2.3 and 12 ms.

Two kernels of PyTorch spare few bfloat16 rows that, where they are vectorised: of int8 codes with a scale for each row
and inputs that are not rounded, here; of 4-bit codes, in an order of their own, in `packed_int4.py`.
"""

import platform
from functools import cache

import torch
from torch import Tensor

from facet.kernels.quantized import reference
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.reference import Product
from facet.kernels.quantized.rounding import to_int8

# On one core with AVX-512, 16384 x 2560: 6.5, 18, 36 and 73 ms for 1, 8, 16 and 32 rows, by tiles 26, 43, 52 and 64.
MAX_FEW_ROWS = 16


def linear(x: Tensor, matrix: QuantizedMatrix, product: Product, *, in_one_chain: bool) -> Tensor:
    """`in_one_chain`: company must change no bit, so that few rows and many are multiplied alike."""
    if is_of_integers(matrix) and multiplies_int8():
        return int8_linear(x, matrix)
    are_few = len(x) <= MAX_FEW_ROWS and not in_one_chain
    if are_few and x.dtype == torch.bfloat16 and has_int8_rows(matrix) and has_vectors():
        return few_rows_linear(x, matrix)
    if x.dtype == torch.bfloat16 and has_bfloat16_products() and not in_one_chain:
        return reference.linear(x, matrix, product, torch.bfloat16)
    return reference.linear(x, matrix, product)


def few_rows_linear(x: Tensor, matrix: QuantizedMatrix) -> Tensor:
    """Multiplies by the codes as they are. The kernel takes scales of the type of x only, so they are applied to its
    sums."""
    sums = torch._weight_int8pack_mm(x.contiguous(), matrix.codes, x.new_ones(matrix.num_rows))
    return sums.float().mul_(matrix.scales.float().t()).to(x.dtype)


def int8_linear(x: Tensor, matrix: QuantizedMatrix) -> Tensor:
    """Like the reference, but with sums of integers, which are exact: the scales are applied to them at the end."""
    inputs = to_int8(x)
    sums = torch._int_mm(inputs.codes, matrix.codes.t())
    if matrix.zeros is not None:
        sums = sums - inputs.codes.sum(-1, keepdim=True, dtype=torch.int32) * matrix.zeros.t().int()
    # In place: at 512 x 6144 memory for two more results takes nine tenths of the time.
    return sums.float().mul_(inputs.scales).mul_(matrix.scales.float().t()).to(x.dtype)


def has_int8_rows(matrix: QuantizedMatrix) -> bool:
    format = matrix.format
    is_plain = format.has_row_scales and not format.is_reordered and not format.rounds_outputs
    return format.codes == "int8" and format.rounding is None and is_plain


def is_of_integers(matrix: QuantizedMatrix) -> bool:
    format = matrix.format
    has_plain_scales = format.scales.group is None and format.coarse_scales is None and not format.has_minimums
    is_plain = has_plain_scales and not format.is_reordered and not format.rounds_outputs
    return format.codes == "int8" and format.rounding == "int8_token" and is_plain


@cache
def multiplies_int8() -> bool:
    return bool(torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported())


@cache
def has_bfloat16_products() -> bool:
    """Whether the processor has products of bfloat16 that are faster than those of float32."""
    if platform.machine() in ("x86_64", "AMD64"):  # where AVX-512 alone has such products, too, by way of float32
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def has_vectors() -> bool:
    """Whether PyTorch's kernels for quantized matrices are vectorised for this processor."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
