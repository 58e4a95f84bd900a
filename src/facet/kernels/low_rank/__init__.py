"""What adapters add to a product: rows through matrices of low rank, each row through those of its own adapter. The
Triton kernels serve tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.low_rank import reference
from facet.kernels.low_rank.matrices import AdapterRows, LowRankMatrices
from facet.kernels.low_rank.reference import Product

__all__ = ["AdapterRows", "LowRankMatrices", "Product", "add_low_rank"]


def add_low_rank(
    product: Tensor, x: Tensor, rows: AdapterRows, matrices: LowRankMatrices, linear: Product, *, first: int = 0
) -> None:
    """Adds up @ down @ x to every row of `product`, with the matrices of the row's adapter; one without stays as it is.

    product [rows, outputs], of the outputs from `first` on; x [rows, inputs]. `linear` is the product that is used on a
    CPU. A row's bits depend on no other row.
    """
    if product.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.low_rank import triton

        triton.add_low_rank(product, x, rows.numbers, matrices, first=first)
    else:
        reference.add_low_rank(product, x, rows, matrices, linear, first=first)
