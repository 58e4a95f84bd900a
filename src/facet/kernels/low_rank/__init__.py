"""What adapters add to a product: rows through matrices of low rank, each row through those of its own adapter. The
Triton kernels serve tensors on a GPU, the reference everything else."""

from collections.abc import Callable

from torch import Tensor

from facet.kernels.low_rank import reference
from facet.kernels.low_rank.matrices import AdapterRows, LowRankMatrices
from facet.kernels.low_rank.reference import Product

__all__ = ["AdapterRows", "LowRankMatrices", "Product", "add_low_rank", "low_rank_addition"]


def low_rank_addition(
    x: Tensor, rows: AdapterRows, matrices: LowRankMatrices, linear: Product, *, first: int = 0, end: int | None = None
) -> Callable[[Tensor], None]:
    """What adds up @ down @ x to every row of a product, with the matrices of the row's adapter; one without stays as
    it is. Begins before the product is there.

    x [rows, inputs]; the product [rows, outputs], of the outputs from `first` to before `end`. `linear` is the product
    that is used on a CPU. A row's bits depend on no other row.
    """
    end = matrices.starts[-1] if end is None else end
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.low_rank import triton

        return triton.narrow_rows(x, rows.numbers, matrices, first=first, end=end).add_to

    def add(product: Tensor) -> None:
        reference.add_low_rank(product, x, rows, matrices, linear, first=first)

    return add


def add_low_rank(
    product: Tensor, x: Tensor, rows: AdapterRows, matrices: LowRankMatrices, linear: Product, *, first: int = 0
) -> None:
    """The same to a product that is there."""
    low_rank_addition(x, rows, matrices, linear, first=first, end=first + product.shape[1])(product)
