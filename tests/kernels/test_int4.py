"""Products with shuffled 4-bit codes against the reference: emulated on a CPU, real on a GPU, compiled anywhere."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized import int4, reference
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int4.tuning import Tuning
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.matrix_format import MatrixFormat, ScaleFormat

pytest.importorskip("triton")
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int4_machine import NAMES

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
ROOM = "facet.kernels.quantized.int4"

WIDE = Tuning(tiles=2, num_out_warps=2, num_in_warps=1)
DEEP = Tuning(tiles=1, num_out_warps=1, num_in_warps=4)
BOTH = Tuning(tiles=2, num_out_warps=2, num_in_warps=2)


def format_of(group: int | None, dtype: str = "bfloat16") -> MatrixFormat:
    return MatrixFormat(codes="int4", scales=ScaleFormat(dtype=dtype, group=group))


@pytest.fixture(scope="module")
def few_rows() -> ModuleType:
    if HAS_GPU:
        from facet.kernels.quantized.int4 import few_rows

        return few_rows
    return emulated([f"{ROOM}.kernel", f"{ROOM}.few_rows"], f"{ROOM}.language", own=NAMES)


def expected(operation: str, x: Tensor, matrix: QuantizedMatrix, given: Tensor) -> Tensor:
    """Rounded where the engine rounds."""
    products = reference.linear(x.float(), matrix).to(x.dtype)
    if operation == "gated_input_linear":
        return gate_per_layer_input(products, given)
    return geglu(products) if operation == "geglu_linear" else products


def run(
    few_rows: ModuleType, operation: str, x: Tensor, matrix: QuantizedMatrix, given: Tensor, tuning: Tuning | None
) -> Tensor:
    shuffled = int4.shuffle(matrix, is_gated=operation == "geglu_linear")
    more = (given,) if operation == "gated_input_linear" else ()
    function: Callable[..., Tensor] = getattr(few_rows, operation)
    return function(x, shuffled, *more, tuning)


@pytest.mark.parametrize(
    ("operation", "case", "num_rows", "tuning"),
    [
        ("linear", Case(format=format_of(32)), 1, WIDE),
        ("linear", Case(format=format_of(64), num_in=640), 11, DEEP),  # warps without a block, at the end
        ("linear", Case(format=format_of(128, "float16"), num_out=80), 64, BOTH),  # tiles that are not there
        ("linear", Case(format=format_of(None), num_in=352), 8, DEEP),  # a block that is not whole
        ("geglu_linear", Case(format=format_of(32), num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=format_of(32)), 19, WIDE),
        ("linear", Case(format=format_of(32), num_out=32, num_in=256), 70, None),  # more rows than a program takes
    ],
)
def test_equals_reference(
    few_rows: ModuleType, operation: str, case: Case, num_rows: int, tuning: Tuning | None
) -> None:
    matrix = case.matrix(DEVICE)
    x = case.inputs(num_rows + 1, torch.bfloat16, DEVICE)[1:]
    given = torch.randn(num_rows, case.num_out, dtype=torch.bfloat16, device=DEVICE)
    got = run(few_rows, operation, x, matrix, given, tuning)
    torch.testing.assert_close(got, expected(operation, x, matrix, given), atol=1e-2, rtol=2**-6)
