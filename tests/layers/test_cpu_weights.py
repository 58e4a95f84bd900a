"""Weights that a processor multiplies by their codes, beside those of any format."""

import pytest
import torch
from torch import Tensor

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL
from facet.kernels.quantized import packed_int4
from facet.kernels.quantized.cases import FORMATS, Case
from facet.layers.cpu_weights import PackedInt4Weight
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight_kinds import choose_kind

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not packed_int4.runs_on(CPU), reason="PyTorch has no fast kernel for this processor")


def both(num_out: int = 128, num_in: int = 320) -> tuple[PackedInt4Weight, QuantizedWeight]:
    matrix = Case(format=FORMATS["int4 groups"], num_out=num_out, num_in=num_in).matrix()
    fast, plain = (kind(matrix, dtype=torch.bfloat16, arithmetic=USUAL) for kind in (PackedInt4Weight, QuantizedWeight))
    assert isinstance(fast, PackedInt4Weight)
    return fast, plain


def close(got: Tensor, expected: Tensor) -> None:
    assert (got.float() - expected.float()).norm() <= 8e-3 * expected.float().norm()


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "kind"),
    [
        ("int4 groups", (64, 64), torch.bfloat16, PackedInt4Weight),
        ("uint4 zeros", (64, 64), torch.bfloat16, PackedInt4Weight),
        ("int4 groups", (64, 64), torch.float32, QuantizedWeight),  # not vectorised
        ("int4 groups", (64, 64), torch.float16, QuantizedWeight),
        ("int4 groups", (4, 64, 64), torch.bfloat16, QuantizedWeight),
        ("int8 rows", (64, 64), torch.bfloat16, QuantizedWeight),
    ],
)
def test_the_kind_of_a_matrix(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, kind: type[QuantizedWeight]
) -> None:
    assert choose_kind(FORMATS[name], shape, dtype=dtype, device=CPU) is kind


def test_without_the_kernel_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_int4, "_block_outputs", lambda: None)
    assert choose_kind(FORMATS["int4 groups"], (64, 64), dtype=torch.bfloat16, device=CPU) is QuantizedWeight


@pytest.mark.parametrize("num_rows", [3, packed_int4.MAX_FEW_ROWS + 1])
def test_products(num_rows: int) -> None:
    fast, plain = both()
    x, given = torch.randn(num_rows, 320).bfloat16(), torch.randn(num_rows, 128).bfloat16()
    unprepared = fast.linear(x)
    fast.prepare(is_gated=True)
    close(fast.linear(x), unprepared)
    close(fast.linear(x), plain.linear(x))
    close(fast.linear(x, slice(16, 48)), plain.linear(x, slice(16, 48)))
    close(fast.geglu_linear(x), plain.geglu_linear(x))
    close(fast.gated_input_linear(x, given), plain.gated_input_linear(x, given))


def test_tables_stay_as_they_are() -> None:
    fast, plain = both()
    fast.prepare_table()
    assert torch.equal(fast.embed(torch.tensor([5, 0]), 2.0), plain.embed(torch.tensor([5, 0]), 2.0))


def test_company_changes_no_bit_where_that_is_promised() -> None:
    fast, _ = both()
    fast.arithmetic = BATCH_INVARIANT
    fast.prepare(is_gated=False)
    x = torch.randn(packed_int4.MAX_FEW_ROWS + 1, 320).bfloat16()
    assert torch.equal(fast.linear(x)[:1], fast.linear(x[:1]))
