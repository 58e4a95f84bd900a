"""Low-rank additions against products in float64, and the Triton kernels against the reference."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from facet.kernels.linear import invariant_linear
from facet.kernels.low_rank import AdapterRows, LowRankMatrices, Product, begin_addition, cases
from facet.kernels.low_rank.matrices import padded_rank

DTYPES = {torch.float32: cases.FLOAT32, torch.float16: cases.HALF}


def add(
    product: Tensor, x: Tensor, numbers: Tensor, matrices: LowRankMatrices, linear: Product, *, first: int = 0
) -> None:
    end = first + product.shape[1]
    begin_addition(x, AdapterRows(numbers), matrices, linear, first=first, end=end).add_to(product)


def formula(product: Tensor, x: Tensor, numbers: Tensor, matrices: LowRankMatrices, first: int = 0) -> Tensor:
    """Row by row, in float64."""
    expected = product.double()
    end = first + product.shape[1]
    for row, number in enumerate(numbers.tolist()):
        if number == 0:
            continue
        down, up = matrices.down[number - 1].double(), matrices.up[number - 1].double()
        for part in range(len(matrices.starts) - 1):
            for output in range(max(first, matrices.starts[part]), min(end, matrices.starts[part + 1])):
                expected[row, output - first] += up[output] @ (down[part] @ x[row].double())
    return expected


def some_numbers(num_rows: int, num_adapters: int) -> Tensor:
    """Runs of rows with and without adapters, in no order."""
    return torch.tensor([(row // 3 * 5) % (num_adapters + 1) for row in range(num_rows)], dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases.CASES[:2])
def test_each_row_has_its_own_adapter(case: cases.Case, dtype: torch.dtype) -> None:
    matrices, (x, product) = case.matrices(dtype), case.rows(11, dtype)
    numbers = some_numbers(11, case.num_adapters)
    assert set(numbers.tolist()) == set(range(case.num_adapters + 1))
    expected = formula(product, x, numbers, matrices)
    add(product, x, numbers, matrices, functional.linear)
    DTYPES[dtype].check(product, expected)


@pytest.mark.parametrize(("first", "end"), [(24, 40), (0, 24), (10, 30), (33, 35)])
def test_some_of_the_outputs(first: int, end: int) -> None:
    case = cases.CASES[0]
    matrices, (x, product) = case.matrices(torch.float32), case.rows(7, torch.float32)
    numbers, some = some_numbers(7, case.num_adapters), product[:, first:end].clone()
    expected = formula(some, x, numbers, matrices, first)
    add(some, x, numbers, matrices, functional.linear, first=first)
    cases.FLOAT32.check(some, expected)


def test_rows_without_an_adapter_keep_every_bit() -> None:
    case = cases.CASES[0]
    matrices, (x, product) = case.matrices(torch.float32), case.rows(7, torch.float32)
    matrices.down.fill_(torch.nan)
    before = product.clone()
    add(product, x, torch.zeros(7, dtype=torch.int32), matrices, functional.linear)
    assert torch.equal(product, before)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_company_changes_no_bit(num_rows: int, seed: int) -> None:
    case = cases.CASES[0]
    matrices, (x, product) = case.matrices(torch.float32), case.rows(num_rows, torch.float32, seed=seed)
    numbers = torch.randint(0, 4, (num_rows,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    alone = product[:1].clone()
    add(product, x, numbers, matrices, invariant_linear)
    add(alone, x[:1], numbers[:1], matrices, invariant_linear)
    assert torch.equal(product[:1], alone)


def test_ranks_are_filled_up_to_powers_of_two() -> None:
    assert [padded_rank(rank) for rank in (1, 8, 16, 17, 24, 64, 100)] == [16, 16, 16, 32, 32, 64, 128]


class TestTriton:
    """In the interpreter where there is no GPU."""

    @pytest.fixture(autouse=True)
    def kernels(self) -> None:
        pytest.importorskip("triton")

    @staticmethod
    def _add(product: Tensor, x: Tensor, numbers: Tensor, matrices: LowRankMatrices, *, first: int = 0) -> Tensor:
        from facet.kernels.low_rank import triton

        added = product.clone()
        triton.narrow_rows(x, numbers, matrices, first=first, end=first + product.shape[1]).add_to(added)
        return added

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("case", cases.CASES)
    @pytest.mark.parametrize("num_rows", [1, 7, 70])
    def test_against_the_reference(self, case: cases.Case, num_rows: int, dtype: torch.dtype) -> None:
        matrices, (x, product) = case.matrices(dtype), case.rows(num_rows, dtype)
        numbers = some_numbers(num_rows, case.num_adapters) if num_rows > 1 else torch.full((1,), 2, dtype=torch.int32)
        got = self._add(product, x, numbers, matrices)
        add(product, x, numbers, matrices, functional.linear)
        DTYPES[dtype].check(got, product)

    def test_some_of_the_outputs(self) -> None:
        case = cases.CASES[0]
        matrices, (x, product) = case.matrices(torch.float32), case.rows(5, torch.float32)
        numbers = torch.tensor([0, 1, 3, 3, 2], dtype=torch.int32)
        for first, end in ((24, 40), (0, 24), (10, 30), (33, 35)):
            some = product[:, first:end]
            cases.FLOAT32.check(
                self._add(some, x, numbers, matrices, first=first), formula(some, x, numbers, matrices, first)
            )

    def test_number_of_rows_changes_no_bit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Few rows have their sums divided among programs, many have not; few have turns."""
        from facet.kernels.low_rank import triton

        case = replace(cases.CASES[1], num_inputs=1700)
        matrices, (x, product) = case.matrices(torch.float32), case.rows(80, torch.float32)
        numbers = some_numbers(80, case.num_adapters)
        together = self._add(product, x, numbers, matrices)
        # Of 7 slices, programs have 1, 2, 3 or all; tiles have turns or none; programs have a tile of outputs or more.
        for rows, many, few, most_shared in (
            (slice(0, 1), 512, 128, 1024),
            (slice(3, 10), 8, 128, 1024),
            (slice(40, 80), 18, 0, 1024),
            (slice(0, 80), 10, 0, 1024),
            (slice(7, 80), 10, 0, 16),
        ):
            monkeypatch.setattr(triton, "_MANY_PROGRAMS", many)
            monkeypatch.setattr(triton, "_FEW_ROWS", few)
            monkeypatch.setattr(triton, "_MOST_SHARED_ROWS", most_shared)
            monkeypatch.setattr(triton, "_RESIDENT", few or 2)
            assert torch.equal(self._add(product[rows], x[rows], numbers[rows], matrices), together[rows])

    def test_rows_without_an_adapter_keep_every_bit(self) -> None:
        case = cases.CASES[0]
        matrices, (x, product) = case.matrices(torch.float32), case.rows(20, torch.float32)
        matrices.down[1:], matrices.up[1:] = torch.nan, torch.nan
        x[3] = torch.nan
        numbers = torch.zeros(20, dtype=torch.int32)
        numbers[5] = 1
        got = self._add(product, x, numbers, matrices)
        assert torch.equal(got[:5], product[:5])
        assert torch.equal(got[6:], product[6:])
        assert got[5].isfinite().all()
        assert not torch.equal(got[5], product[5])

    @pytest.mark.parametrize("parts", [(136, 136), (130, 142)])  # halves, and parts that are none
    def test_activations_are_those_of_the_sums(self, parts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        """Many rows become activations right where they become wide."""
        from facet.kernels.geglu.reference import geglu
        from facet.kernels.low_rank import triton

        monkeypatch.setattr(triton, "_MOST_SHARED_ROWS", 16)
        monkeypatch.setattr(triton, "_RESIDENT", 2)
        case = replace(cases.CASES[1], parts=parts)
        matrices, (x, product) = case.matrices(torch.float32), case.rows(70, torch.float32)
        numbers = some_numbers(70, case.num_adapters)
        numbers[32:64] = 0  # a tile without any
        expected = geglu(self._add(product, x, numbers, matrices))
        addition = triton.narrow_rows(x, numbers, matrices, first=0, end=sum(parts))
        torch.testing.assert_close(addition.geglu_of(product, geglu), expected, atol=1e-6, rtol=1e-5)
