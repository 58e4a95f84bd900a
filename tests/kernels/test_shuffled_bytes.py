"""Bytes of matrices in the order of a GPU's kernels: those counted beforehand against those of the tensors."""

from dataclasses import replace
from types import ModuleType

import pytest

from facet.kernels.quantized import int4, int8_groups
from facet.kernels.quantized.cases import FORMATS, Case
from facet.matrix_format import MatrixFormat, ScaleFormat


def in_groups(codes: str, dtype: str, group: int | None, **more: object) -> MatrixFormat:
    return MatrixFormat(codes=codes, scales=ScaleFormat(dtype=dtype, group=group), **more)  # type: ignore[arg-type]


NVFP4 = FORMATS["fp4 coarse"]
IN_FOUR_BITS = {
    **{f"int4, {group}": in_groups("int4", "bfloat16", group) for group in (None, 32, 64, 128)},
    **{f"with zeros, {group}": in_groups("uint4", "float16", group, has_zeros=True) for group in (None, 32, 64, 128)},
    "NVFP4": NVFP4,
    "NVFP4 of small numbers": replace(NVFP4, coarse_scales=ScaleFormat(dtype="bfloat16", group=None)),
    "Q4_0": in_groups("int4", "float16", 32),
    "Q4_K": FORMATS["uint4 minimums"],
}
IN_EIGHT_BITS = {
    **{f"int8, {group}": in_groups("int8", "bfloat16", group) for group in (32, 64, 128)},
    "Q8_0": in_groups("int8", "float16", 32),
    "Q5_0": in_groups("int8", "float16", 32, stored_bits=5),
    "Q6_K": replace(FORMATS["int8 groups"], stored_bits=6),
    "Q5_K": replace(FORMATS["int8 minimums"], stored_bits=5),
}
CASES: dict[str, tuple[ModuleType, MatrixFormat, int | None]] = {
    **{name: (int4, format, None) for name, format in IN_FOUR_BITS.items()},
    **{f"{name}, experts": (int4, format, 3) for name, format in IN_FOUR_BITS.items()},
    **{name: (int8_groups, format, None) for name, format in IN_EIGHT_BITS.items()},
}


@pytest.mark.parametrize("num_in", [32, 96, 704, 768])
@pytest.mark.parametrize(("room", "format", "num_experts"), CASES.values(), ids=CASES)
def test_what_is_counted_is_what_there_is(
    room: ModuleType, format: MatrixFormat, num_experts: int | None, num_in: int
) -> None:
    if room is int8_groups and not int8_groups.can_shuffle(format, (48, num_in)):
        assert format.coarse_scales is not None
        assert num_in % 256
        return
    matrix = Case(format=format, num_out=48, num_in=num_in, num_experts=num_experts).matrix()
    shape = (*matrix.codes.shape[:-1], num_in)
    counted = room.shuffled_bytes(format, shape)
    for is_gated in (False, True):
        assert counted == sum(each.nbytes for each in room.shuffle(matrix, is_gated=is_gated).tensors().values())
    assert counted >= format.num_bytes(shape) == sum(each.nbytes for each in matrix.tensors().values())


def test_widths_that_blocks_do_not_fit_are_filled_up() -> None:
    """By hand: 704 inputs of 26B-A4B's experts are 768 with their scales."""
    rows_of_704, rows_of_768 = (100 * (num_in // 2 + num_in // 32 * 2) for num_in in (704, 768))
    format = IN_FOUR_BITS["Q4_0"]
    assert (format.num_bytes((100, 704)), int4.shuffled_bytes(format, (100, 704))) == (rows_of_704, rows_of_768)
    assert int8_groups.shuffled_bytes(IN_EIGHT_BITS["Q8_0"], (100, 96)) == 100 * (128 + 4 * 2)
