"""Brings rows of a quantized matrix to the type of activations, on a GPU: what serves formats without kernels of their
own.

Values are those of `QuantizedMatrix.values` in the order in which columns are stored, rounded once. A minimum is
subtracted before a product is rounded, in all kernels alike: `few_rows.py` takes the same values.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.quantized.matrix import QuantizedMatrix

# What a code means, as the kernel's compile-time constant: the first three have eight bits.
NUMBER, INTEGER, E4M3, UNSIGNED, SIGNED, E2M1 = (tl.constexpr(kind) for kind in range(6))
_KINDS = {"int8": INTEGER, "fp8": E4M3, "uint4": UNSIGNED, "int4": SIGNED, "fp4": E2M1}
# How scales are written: as numbers, as exponents of two, or as bits of e4m3.
PLAIN, POWERS, SMALL = (tl.constexpr(kind) for kind in range(3))
_SCALES = {torch.float8_e8m0fnu: POWERS, torch.float8_e4m3fn: SMALL}
# Before it, GPUs convert no numbers of FP8.
_ADA = (8, 9)
# Outputs and inputs of a program: a thread has 32 values.
_TILE = (16, 256)


def widen(matrix: QuantizedMatrix, dtype: torch.dtype) -> Tensor:
    """The values of a matrix, [outputs, inputs]."""
    num_rows, num_inputs = matrix.num_rows, matrix.num_inputs
    values = torch.empty(num_rows, num_inputs, dtype=dtype, device=matrix.codes.device)
    block_out, block_in = _TILE
    _widen_kernel[(triton.cdiv(num_rows, block_out), triton.cdiv(num_inputs, block_in))](
        *tensors_of(matrix),
        values,
        *strides_of(matrix),
        num_rows,
        BLOCK_OUT=block_out,
        **constants_of(matrix, block_in),
        num_warps=4,
    )
    return values


def tensors_of(matrix: QuantizedMatrix) -> tuple[Tensor | None, ...]:
    """Codes, scales, coarse scales, zeros, minimums and coarse minimums, in types that kernels load."""
    coarse, minimums, coarse_minimums = matrix.coarse_scales, matrix.minimums, matrix.coarse_minimums
    fine, rough, least, rough_least = (_as_bits(each) for each in (matrix.scales, coarse, minimums, coarse_minimums))
    codes = _as_bits(matrix.codes) if _kind_of(matrix) is E4M3 else matrix.codes
    return codes, fine, rough, matrix.zeros, least, rough_least


def strides_of(matrix: QuantizedMatrix) -> tuple[int, int, int]:
    """The strides from row to row of codes, of scales and of coarse scales."""
    coarse = matrix.coarse_scales
    return matrix.codes.stride(0), matrix.scales.stride(0), 0 if coarse is None else coarse.stride(0)


def constants_of(matrix: QuantizedMatrix, block_in: int) -> dict[str, int]:
    """What tells kernels how to read them, `block_in` inputs at a time."""
    num_scales = matrix.scales.shape[-1]
    num_coarse = 1 if matrix.coarse_scales is None else matrix.coarse_scales.shape[-1]
    return dict(
        NUM_IN=matrix.num_inputs,
        GROUP=matrix.format.scales.group or triton.cdiv(matrix.num_inputs, block_in) * block_in,
        PER_COARSE=triton.cdiv(num_scales, num_coarse),
        KIND=_kind_of(matrix).value,
        SCALES=_SCALES.get(matrix.scales.dtype, PLAIN).value,
        BLOCK_IN=block_in,
    )


def _kind_of(matrix: QuantizedMatrix) -> tl.constexpr:
    kind = _KINDS[matrix.format.codes]
    return NUMBER if kind is E4M3 and _converts_fp8(matrix.codes.device) else kind


def _converts_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _ADA


def _as_bits(numbers: Tensor | None) -> Tensor | None:
    """Eight-bit floats of scales and codes as their bits; other numbers as they are."""
    return numbers if numbers is None or numbers.dtype not in _SCALES else numbers.view(torch.uint8)


@triton.jit
def value_of_e4m3(bits):
    """The float32 value of an e4m3 number. Its exponent is the last four bits of one that is 2^120 times too small."""
    small = ((bits & 128) << 24 | (bits & 127) << 20).to(tl.float32, bitcast=True)
    return tl.where((bits & 127) == 127, float("nan"), small * 1.329227995784916e36)


@triton.jit
def value_of_code(code, KIND: tl.constexpr):
    """The float32 value of a code, before scales."""
    if KIND == E2M1:
        value = value_of_e2m1(code)
    elif KIND == INTEGER:
        # Under the exponent of 2^23 a code plus 128 is the number's last bits. The instruction that converts eight bits
        # takes eight times as long as one that adds.
        value = ((code.to(tl.int32) & 255) ^ 0x4B000080).to(tl.float32, bitcast=True) - 8388736.0
    elif KIND == E4M3:
        value = value_of_e4m3(code.to(tl.int32))
    elif KIND == SIGNED:
        value = (code - 8).to(tl.float32)
    else:
        value = code.to(tl.float32)
    return value


@triton.jit
def scale_of(fine, coarse, row, group, fine_stride, coarse_stride, is_live, PER_COARSE, SCALES: tl.constexpr):
    scale = tl.load(fine + row * fine_stride + group, mask=is_live, other=0.0)
    if SCALES == POWERS:
        scale = tl.exp2(scale.to(tl.float32) - 127.0)
    elif SCALES == SMALL:
        scale = value_of_e4m3(scale.to(tl.int32))
    else:
        scale = scale.to(tl.float32)
    if coarse is not None:
        scale *= tl.load(coarse + row * coarse_stride + group // PER_COARSE, mask=is_live, other=0.0).to(tl.float32)
    return scale


@triton.jit
def value_of_e2m1(code):
    """The float32 value of an e2m1 number. Its exponent is the last two bits of one that is 2^126 times too small."""
    return ((code & 8) << 28 | (code & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def _spread(numbers, BLOCK_IN: tl.constexpr):
    """[outputs, groups] as [outputs, inputs]; one for all inputs, or one for each, stays as it is."""
    OUT: tl.constexpr = numbers.shape[0]
    GROUPS: tl.constexpr = numbers.shape[1]
    if GROUPS == 1 or GROUPS == BLOCK_IN:
        return numbers
    else:
        spread = tl.broadcast_to(numbers[:, :, None], [OUT, GROUPS, BLOCK_IN // GROUPS])
        return tl.reshape(spread, [OUT, BLOCK_IN])


@triton.jit
def tile_of_values(
    row, start, codes, scales, coarse_scales, zeros, minimums, coarse_minimums, code_stride, scale_stride,
    coarse_stride, NUM_IN: tl.constexpr, GROUP: tl.constexpr, PER_COARSE: tl.constexpr, KIND: tl.constexpr,
    SCALES: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    """[outputs, inputs] in float32, of the inputs from `start`. `row`: [outputs, 1], those of the matrix. Values behind
    the last input are numbers, whichever."""
    inputs = start + tl.arange(0, BLOCK_IN)[None, :]
    if KIND <= E4M3:
        code = tl.load(codes + row * code_stride + inputs, mask=inputs < NUM_IN, other=0.0)
    else:
        octets = start // 2 + tl.arange(0, BLOCK_IN // 2)[None, :]
        octet = tl.load(codes + row * code_stride + octets, mask=octets < NUM_IN // 2, other=0).to(tl.int32)
        code = tl.reshape(tl.join(octet & 15, octet >> 4), [BLOCK_OUT, BLOCK_IN])
    value = value_of_code(code, KIND)
    # Scales are loaded once for a group, unless groups begin anywhere in a block.
    if BLOCK_IN % GROUP == 0:
        group = start // GROUP + tl.arange(0, BLOCK_IN // GROUP)[None, :]
    elif GROUP % BLOCK_IN == 0:
        group = start // GROUP + tl.arange(0, 1)[None, :]
    else:
        group = inputs // GROUP
    is_live = group * GROUP < NUM_IN
    if zeros is not None:
        zero = tl.load(zeros + row * scale_stride + group, mask=is_live, other=0).to(tl.float32)
        value -= _spread(zero, BLOCK_IN)
    scale = scale_of(scales, coarse_scales, row, group, scale_stride, coarse_stride, is_live, PER_COARSE, SCALES)
    if minimums is None:
        return value * _spread(scale, BLOCK_IN)
    else:
        least = scale_of(
            minimums, coarse_minimums, row, group, scale_stride, coarse_stride, is_live, PER_COARSE, SCALES
        )  # fmt: skip
        scale = tl.broadcast_to(_spread(scale, BLOCK_IN), value.shape)
        return tl.fma(value, scale, tl.broadcast_to(_spread(-least, BLOCK_IN), value.shape))


@triton.jit
def _widen_kernel(
    codes, scales, coarse_scales, zeros, minimums, coarse_minimums, values, code_stride, scale_stride, coarse_stride,
    num_rows, NUM_IN: tl.constexpr, GROUP: tl.constexpr, PER_COARSE: tl.constexpr, KIND: tl.constexpr,
    SCALES: tl.constexpr, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)).to(tl.int64)[:, None]
    # Behind the last row that one is read again; nothing is stored of it.
    known = tl.minimum(row, num_rows - 1)
    start = tl.program_id(1) * BLOCK_IN
    tile = tile_of_values(
        known, start, codes, scales, coarse_scales, zeros, minimums, coarse_minimums, code_stride, scale_stride,
        coarse_stride, NUM_IN, GROUP, PER_COARSE, KIND, SCALES, BLOCK_OUT, BLOCK_IN,
    )  # fmt: skip
    inputs = start + tl.arange(0, BLOCK_IN)[None, :]
    is_there = (row < num_rows) & (inputs < NUM_IN)
    tl.store(values + row * NUM_IN + inputs, tile.to(values.dtype.element_ty), mask=is_there)
