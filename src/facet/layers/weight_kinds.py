"""Chooses the kind of weight that a quantized matrix is kept in."""

from collections.abc import Sequence

import torch

from facet.kernels.arithmetic import Arithmetic
from facet.kernels.quantized import QuantizedMatrix, eight_bits, int4, int8_groups, packed_int4
from facet.layers.cpu_weights import PackedInt4Weight
from facet.layers.gpu_weights import EightBitsWeight, Int4Weight, Int8GroupsWeight
from facet.layers.quantized_weight import QuantizedWeight
from facet.matrix_format import MatrixFormat


def make_quantized_weight(
    format: MatrixFormat, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device, arithmetic: Arithmetic
) -> QuantizedWeight:
    """An uninitialised weight of the kind that multiplies fastest on the device."""
    kind = choose_kind(format, shape, dtype=dtype, device=device)
    return kind(QuantizedMatrix.empty(format, shape, device), dtype=dtype, arithmetic=arithmetic)


def choose_kind(
    format: MatrixFormat, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device
) -> type[QuantizedWeight]:
    """The kind for a device that is here."""
    kind = kind_with_kernels(format, shape, dtype=dtype, device_type=device.type)
    return kind if kind.runs_on(device, format) else QuantizedWeight


def prepared_on(device: torch.device) -> str | None:
    """The type of a device that has the kernels for matrices in an order of their own; None: this has not."""
    return device.type if int4.runs_on(device) or packed_int4.runs_on(device) else None


def kind_with_kernels(
    format: MatrixFormat, shape: Sequence[int], *, dtype: torch.dtype, device_type: str
) -> type[QuantizedWeight]:
    """The kind for a device that has the kernels: a processor with AVX2; an Ampere GPU or a later one, for codes times
    codes of FP8 a Hopper one."""
    if device_type == "cpu":
        is_packed = dtype == torch.bfloat16 and packed_int4.can_pack(format, shape)
        return PackedInt4Weight if is_packed else QuantizedWeight
    if dtype.itemsize == 2 and eight_bits.serves(format, shape[-1]):
        return EightBitsWeight
    if dtype == torch.bfloat16 and int4.can_shuffle(format, shape[-2]):
        return Int4Weight
    if dtype == torch.bfloat16 and int8_groups.can_shuffle(format, shape):
        return Int8GroupsWeight
    return QuantizedWeight
