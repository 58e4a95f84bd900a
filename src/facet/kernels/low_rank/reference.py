"""Low-rank additions in plain PyTorch: the definition, and what serves on a CPU. Loops over adapters, not rows."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from facet.kernels.low_rank.matrices import AdapterRows, LowRankMatrices

# x [rows, inputs] @ weight^T, weight [outputs, inputs].
Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class ReferenceAddition:
    x: Tensor
    rows: AdapterRows
    matrices: LowRankMatrices
    linear: Product
    first: int = 0  # of the product's outputs

    def add_to(self, product: Tensor) -> None:
        """Both products are rounded to the type of x."""
        first, linear = self.first, self.linear
        for number, own in self.rows.by_adapter:
            down, up = self.matrices.down[number - 1], self.matrices.up[number - 1]
            for part, start, end in self.matrices.parts_within(first, first + product.shape[-1]):
                added = linear(linear(self.x[own], down[part]), up[start:end])
                product[own, start - first : end - first] += added

    def geglu_of(self, product: Tensor, geglu: Callable[[Tensor], Tensor]) -> Tensor:
        self.add_to(product)
        return geglu(product)
