"""The quick interpreter of Triton computes what the plain one does, and refuses what it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.quick_interpreter import quick_interpreter

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@triton.jit
def _operands(x, codes, out, factor, SIZE: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Operands of every pair of kinds: numbers, scalars, rows, columns and tiles, of one type and of two."""
    row, column = tl.arange(0, SIZE), tl.arange(0, HALF)
    places = row[:, None] * HALF + column
    tile = tl.load(x + places)
    code = tl.load(codes + places)
    first = tl.load(x + 1)
    scaled = tile * factor - 0.5 + first / 3
    scaled += tl.where(column[None, :] > row[:, None], 2, scaled) * (row[:, None] // 3 % 5)
    scaled = tl.where(first > 100.0, 0.0, scaled) + (code >> 2 & 3).to(tl.float16) * tile.to(tl.float16)
    scaled = tl.maximum(scaled, -tl.abs(tile)) + (code - 7) / (code * code + 1)
    scaled -= tl.sum(scaled, axis=1)[:, None] * tl.max(scaled, axis=0)[None, :]
    is_there = (row[:, None] < SIZE - 1) & (column != 1) | (code == 3)
    tl.store(out + places, scaled, mask=is_there)


@triton.jit
def _product(x, weights, out, ROWS: tl.constexpr, INPUTS: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, ROWS), tl.arange(0, INPUTS)
    left = tl.load(x + row[:, None] * INPUTS + column)
    right = tl.load(weights + column[:, None] * ROWS + row)
    sums = tl.dot(left, right, tl.full([ROWS, ROWS], 1.0, tl.float32), input_precision="ieee")
    tl.store(out + row[:, None] * ROWS + row, sums)


@triton.jit
def _rows_of_two_sizes(x, out, SIZE: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(out + tl.arange(0, SIZE), tl.load(x + tl.arange(0, SIZE)) + tl.load(x + tl.arange(0, HALF)))


@triton.jit
def _too_large_a_number(x, codes, out):  # type: ignore[no-untyped-def]
    tl.store(out, (tl.load(codes) + 300).to(tl.float32) + tl.load(x))


@triton.jit
def _sum_of_pointers(x, out):  # type: ignore[no-untyped-def]
    tl.store(out, tl.load(x + x))


@pytest.fixture(params=[False, True], ids=["plain", "quick"])
def kind(request: pytest.FixtureRequest) -> Iterator[bool]:
    with quick_interpreter() if request.param else nullcontext():
        yield request.param


@contextmanager
def _refused() -> Iterator[None]:
    with pytest.raises(interpreter.InterpreterError):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("code", [torch.int8, torch.int32, torch.int64], ids=str)
def test_same_bits(dtype: torch.dtype, code: torch.dtype) -> None:
    x, codes = torch.randn(16, 8).to(dtype), torch.randint(0, 10, (16, 8), dtype=code)

    def run() -> Tensor:
        out = torch.zeros(16, 8)
        _operands[(1,)](x, codes, out, 3, SIZE=16, HALF=8)
        return out

    plain = run()
    assert plain.isfinite().all()
    assert plain.count_nonzero() > 64
    with quick_interpreter():
        assert torch.equal(run(), plain)


def test_products_do_not_depend_on_where_rows_stand() -> None:
    """Sums of a library may, and bits that differ would be taken for a fault of a kernel."""
    x, weights = torch.randn(16, 32), torch.randn(32, 16)

    def run(x: Tensor) -> Tensor:
        out = torch.zeros(16, 16)
        _product[(1,)](x, weights, out, ROWS=16, INPUTS=32)
        return out

    plain = run(x)
    with quick_interpreter():
        sums = run(x)
        torch.testing.assert_close(sums, plain)
        order = torch.randperm(16)
        assert torch.equal(run(x[order].contiguous()), sums[order])


def test_what_is_refused(kind: bool) -> None:
    x, codes, out = torch.randn(16), torch.ones(16, dtype=torch.int8), torch.zeros(16)
    with _refused():
        _rows_of_two_sizes[(1,)](x, out, SIZE=16, HALF=8)
    with _refused():
        _too_large_a_number[(1,)](x, codes, out)
    with _refused():
        _sum_of_pointers[(1,)](x, out)
