"""Quantized weights and weights of several kinds compute what a dense weight of the same numbers would."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.quantize import quantize
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.quantized_weight import PartsWeight, QuantizedWeight
from facet.layers.weight import DenseWeight, Weight
from facet.matrix_format import CodeKind, MatrixFormat, Rounding, ScaleFormat
from tests.layers.other_weights import change_weights
from tests.layers.test_weight_kinds import logits
from tests.model.paged_model import load
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint

# Per-layer inputs; experts; streams and sparse gates.
NAMES = ("Gemma 4 E4B", "Gemma 4 26B-A4B", "Gemma 3n E4B")
CPU = torch.device("cpu")


def format_of(codes: CodeKind, group: int | None, rounding: Rounding | None = None) -> MatrixFormat:
    return MatrixFormat(codes=codes, scales=ScaleFormat(dtype="float32", group=group), rounding=rounding)


def quantized(values: Tensor, format: MatrixFormat, arithmetic: Arithmetic = USUAL) -> QuantizedWeight:
    matrix = QuantizedMatrix.empty(format, values.shape, CPU)
    weight = QuantizedWeight(matrix, dtype=torch.float32, arithmetic=arithmetic)
    weight.fill(values, slice(None))
    return weight


def dense(values: Tensor, arithmetic: Arithmetic = USUAL) -> DenseWeight:
    return DenseWeight(nn.Parameter(values, requires_grad=False), arithmetic)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_checkpoint(tmp_path_factory.mktemp("model"), SHRUNK[name], random_tensors(SHRUNK[name]))
        for name in NAMES
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", [format_of("int4", 8), format_of("fp8", None)], ids=["int4", "fp8"])
def test_a_model_is_that_of_its_dense_numbers(name: str, format: MatrixFormat, folders: dict[str, Path]) -> None:
    def changed(make: Callable[[Tensor], Weight]) -> Callable[[Tensor], Weight]:
        # Two matrices of streams have widths that hold no group.
        return lambda values: make(values) if values.shape[-1] % 8 == 0 else dense(values)

    got = logits(change_weights(load(folders[name]).model, changed(lambda values: quantized(values, format))))
    same_numbers = changed(lambda values: dense(quantize(values, format).values()))
    expected = logits(change_weights(load(folders[name]).model, same_numbers))
    # Sums in another order, through twelve layers with norms whose random weights enlarge what differs.
    assert (got - expected).abs().max() <= 2e-3
    assert (expected - logits(load(folders[name]).model)).abs().max() > 0.01


class TestParts:
    """Rows 0 to 5 in four bits, 6 to 9 dense, 10 to 15 in eight bits with rounded inputs."""

    VALUES = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    X = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    FORMATS = (format_of("int4", 32), None, format_of("int8", None, "int8_token"))
    ROWS = (slice(0, 6), slice(6, 10), slice(10, 16))

    def parts(self, values: Tensor, arithmetic: Arithmetic = USUAL) -> PartsWeight:
        made = [
            dense(values[..., rows, :].clone(), arithmetic)
            if format is None
            else quantized(values[..., rows, :], format, arithmetic)
            for format, rows in zip(self.FORMATS, self.ROWS, strict=True)
        ]
        return PartsWeight(made, [rows.stop - rows.start for rows in self.ROWS], arithmetic)

    def test_products_of_some_rows_are_those_of_all(self) -> None:
        weight = self.parts(self.VALUES)
        whole = weight.linear(self.X)
        assert (whole - self.X @ self.VALUES.T).abs().max() <= 1.5
        assert torch.equal(whole[:, 6:10], nn.functional.linear(self.X, self.VALUES[6:10]))
        for rows in (slice(0, 6), slice(2, 12), slice(10, None), slice(7, 8)):
            assert torch.allclose(weight.linear(self.X, rows), whole[:, rows], atol=1e-5)

    def test_are_filled_one_by_one_through_a_product(self) -> None:
        linear = Linear(32, (6, 4, 6), Placement(dtype=torch.float32, device=CPU))
        linear.weight = self.parts(torch.zeros_like(self.VALUES))
        for part, rows in enumerate(self.ROWS):
            linear.fill(self.VALUES[rows], part)
        assert torch.equal(linear(self.X), self.parts(self.VALUES).linear(self.X))

    def test_experts_may_be_of_several_kinds(self) -> None:
        generator = torch.Generator().manual_seed(2)
        gate_up, down = (torch.randn(4, *shape, generator=generator) for shape in ((16, 32), (32, 8)))
        chosen = torch.tensor([[0, 3], [3, 1], [2, 0]])
        shares = torch.rand(3, 2, generator=generator)
        small = format_of("int8", None)
        got = self.parts(gate_up).run_experts(self.X, shares, chosen, dense(down))
        values = torch.cat([quantize(gate_up[:, :6], self.FORMATS[0]).values(), gate_up[:, 6:]], dim=1)  # type: ignore[arg-type]
        expected = USUAL.run_experts(self.X, shares, chosen, values, down)
        assert (got - expected).norm() <= 0.03 * expected.norm()  # eight-bit rows with eight-bit inputs
        again = self.parts(gate_up).run_experts(self.X, shares, chosen, quantized(down, small))
        assert 0 < (got - again).norm() <= 0.03 * expected.norm()

    def test_company_changes_no_bit_where_that_is_promised(self) -> None:
        weight = self.parts(self.VALUES, BATCH_INVARIANT)
        together = weight.geglu_linear(self.X)
        for row in range(3):
            assert torch.equal(weight.geglu_linear(self.X[row : row + 1])[0], together[row])


def test_ids_past_the_end_of_a_table_take_its_first_row() -> None:
    """As in the dense table of per-layer inputs: such ids stand for things that are no text."""
    weight = quantized(TestParts.VALUES, format_of("fp8", None))
    rows = weight.look_up(torch.tensor([3, 0, 16, 99]))
    assert torch.equal(rows[1:], rows[1].expand(3, -1))
    assert torch.equal(weight.embed(torch.tensor([3]), 2.0), 2 * rows[:1])
