"""Low-rank additions in plain PyTorch: the definition, and what serves on a CPU. Loops over adapters, not rows."""

from collections.abc import Callable

from torch import Tensor

from facet.kernels.low_rank.matrices import AdapterRows, LowRankMatrices

# x [rows, inputs] @ weight^T, weight [outputs, inputs].
Product = Callable[[Tensor, Tensor], Tensor]


def add_low_rank(
    product: Tensor, x: Tensor, rows: AdapterRows, matrices: LowRankMatrices, linear: Product, *, first: int = 0
) -> None:
    """Both products are rounded to the type of x."""
    for number, own in rows.by_adapter:
        down, up = matrices.down[number - 1], matrices.up[number - 1]
        for part, start, end in matrices.parts_within(first, first + product.shape[-1]):
            added = linear(linear(x[own], down[part]), up[start:end])
            product[own, start - first : end - first] += added
