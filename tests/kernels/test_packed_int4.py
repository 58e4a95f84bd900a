"""Codes of four bits in the order of PyTorch's kernel for a processor."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.kernels.quantized import QuantizedMatrix, packed_int4
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.packed_int4 import MAX_FEW_ROWS, can_pack, multiply, pack, packed_bytes, unpack
from facet.matrix_format import MatrixFormat, ScaleFormat

_HALF = MatrixFormat(codes="int4", scales=ScaleFormat(dtype="float16", group=32))
PACKED: dict[str, MatrixFormat] = {
    **{name: FORMATS[name] for name in ("int4 groups", "int4 reordered", "uint4 zeros")},
    "as Q4_0": _HALF,
    "groups of 128": replace(_HALF, scales=ScaleFormat(dtype="bfloat16", group=128)),
    "as Q4_K": FORMATS["uint4 minimums"],
    "as Q4_1": replace(_HALF, codes="uint4", has_minimums=True),
    "short scales with zeros": replace(FORMATS["uint4 zeros"], scales=ScaleFormat(dtype="bfloat16", group=64)),
}
pytestmark = pytest.mark.skipif(
    not packed_int4.runs_on(torch.device("cpu")), reason="PyTorch has no fast kernel for this processor"
)


def matrix_of(name: str, num_out: int = 192, num_in: int = 512) -> QuantizedMatrix:
    return Case(format=PACKED[name], num_out=num_out, num_in=num_in).matrix()


def close(found: Tensor, expected: Tensor) -> None:
    """A bfloat16 result: half a step of the last digit, and once more where two are added or values are rounded."""
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=2**-6, atol=2**-7 * float(expected.abs().amax()))
    assert (found.float() - expected).norm() <= 5e-3 * expected.norm()


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("num_rows", "in_bfloat16"), [(1, True), (5, True), (MAX_FEW_ROWS + 1, False), (40, True)])
def test_a_product_is_that_of_the_values(
    name: str, num_rows: int, in_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_int4, "has_bfloat16_products", lambda: in_bfloat16)
    matrix = matrix_of(name)
    x = torch.randn(num_rows, 512).bfloat16()
    close(multiply(x, pack(matrix)), x.float() @ matrix.values().t())


@pytest.mark.parametrize("rows", [slice(0, 64), slice(64, 192), slice(10, 70), slice(130, 131)])
@pytest.mark.parametrize("num_rows", [2, MAX_FEW_ROWS + 1])
def test_some_of_the_outputs(rows: slice, num_rows: int) -> None:
    packed, x = pack(matrix_of("as Q4_0")), torch.randn(num_rows, 512).bfloat16()
    everything = multiply(x, packed)
    close(multiply(x, packed, rows), everything[:, rows].float())


@pytest.mark.parametrize("name", PACKED)
def test_a_matrix_comes_back_as_it_was(name: str) -> None:
    matrix = matrix_of(name)
    matrix.scales[3, 2] = 0
    found = unpack(pack(matrix))
    assert found.format == matrix.format
    for part, tensor in matrix.tensors().items():
        if part == "zeros":  # beside a scale of 0 any will do
            assert torch.equal(found.tensors()[part][matrix.scales != 0], tensor[matrix.scales != 0])
        else:
            assert torch.equal(found.tensors()[part], tensor), part
    assert torch.equal(found.values(), matrix.values())


@pytest.mark.parametrize("name", PACKED)
def test_bytes_are_counted_as_they_are(name: str) -> None:
    matrix = matrix_of(name)
    assert packed_bytes(matrix.format, (192, 512)) == sum(t.nbytes for t in pack(matrix).tensors().values())


@pytest.mark.parametrize("name", PACKED)
def test_values_of_tiles(name: str) -> None:
    """The same, but for the last digits of scales that have more than factors."""
    matrix = matrix_of(name)
    packed = pack(matrix)
    values = torch.cat(list(packed_int4._tiles(packed)), dim=1).t()
    expected = matrix.values()
    if matrix.order is not None:
        expected = expected[:, matrix.order.long()]
    if packed.scales is None:
        assert torch.equal(values, expected)
    else:
        assert (values - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", ["int4 groups", "as Q4_0", "as Q4_K"])
def test_company_changes_no_bit_where_that_is_promised(name: str) -> None:
    packed, x = pack(matrix_of(name)), torch.randn(MAX_FEW_ROWS + 8, 512).bfloat16()
    together = multiply(x, packed, most_few_rows=math.inf)
    for start, end in ((0, 1), (1, 4), (4, 21), (21, len(x))):
        alone = multiply(x[start:end], packed, most_few_rows=math.inf)
        assert torch.equal(alone, together[start:end])


@pytest.mark.parametrize(
    ("format", "shape"),
    [
        (FORMATS["int4 rows"], (64, 64)),
        (replace(FORMATS["uint4 minimums"], has_zeros=True), (64, 256)),
        (replace(FORMATS["uint4 minimums"], coarse_scales=ScaleFormat(dtype="float16", group=48)), (64, 768)),
        (replace(_HALF, codes="uint4"), (64, 64)),  # nothing is taken off a code
        (FORMATS["fp4 powers"], (64, 64)),
        (FORMATS["int8 groups"], (64, 256)),
        (_HALF, (4, 64, 64)),  # experts
        (_HALF, (96, 64)),  # no whole blocks
        (_HALF, (64, 48)),  # a short group
        (replace(_HALF, scales=ScaleFormat(dtype="float16", group=16)), (64, 64)),
        (replace(_HALF, scales=ScaleFormat(dtype="float32", group=32)), (64, 64)),
        (replace(_HALF, rounding="int8_token"), (64, 64)),
    ],
)
def test_others_are_left_as_they_are(format: MatrixFormat, shape: tuple[int, ...]) -> None:
    assert can_pack(_HALF, (64, 64))
    assert not can_pack(format, shape)
