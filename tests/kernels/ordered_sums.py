"""Products of emulated kernels, the same on every processor and wherever a row stands.

A library adds in an order that follows from shapes, places in memory and the processor. In double, products of numbers
of 32 bits are exact, and sums of them differ between orders by far less than what is rounded off at the end.
"""

from torch import Tensor


def product(left: Tensor, right: Tensor) -> Tensor:
    """In float32."""
    return (left.double() @ right.double()).float()
