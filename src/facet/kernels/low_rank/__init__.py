"""What adapters add to a product: rows through matrices of low rank, each row through those of its own adapter. The
Triton kernels serve tensors on a GPU, the reference everything else."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from facet.kernels.low_rank.matrices import AdapterRows, LowRankMatrices
from facet.kernels.low_rank.reference import Product, ReferenceAddition

__all__ = ["AdapterRows", "LowRankAddition", "LowRankMatrices", "Product", "begin_addition"]


class LowRankAddition(Protocol):
    """up @ down @ x for every row, with the matrices of the row's adapter. Rows without one stay as they are."""

    def add_to(self, product: Tensor) -> None: ...

    def geglu_of(self, product: Tensor, geglu: Callable[[Tensor], Tensor]) -> Tensor:
        """`geglu` of the sum, the outputs being gates and what they open. May change the product."""


def begin_addition(
    x: Tensor, rows: AdapterRows, matrices: LowRankMatrices, linear: Product, *, first: int = 0, end: int | None = None
) -> LowRankAddition:
    """What is to be added to a product, which need not be there yet.

    x [rows, inputs]; the product [rows, outputs], of the outputs from `first` to before `end`. `linear` is the product
    that is used on a CPU. A row's bits depend on no other row.
    """
    end = matrices.starts[-1] if end is None else end
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.low_rank import triton

        return triton.narrow_rows(x, rows.numbers, matrices, first=first, end=end)
    return ReferenceAddition(x, rows, matrices, linear, first)
