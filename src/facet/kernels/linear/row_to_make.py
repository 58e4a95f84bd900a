"""A row of the stream that the product which takes it has yet to make."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowToMake:
    """What `add_norm` is given, [1, hidden], and where the new stream will be. The row's first product makes both, and
    nobody may read the stream before."""

    residual: Tensor
    update: Tensor
    update_weight: Tensor
    next_weight: Tensor | None  # None: the product takes the stream as it is
    eps: float
    scale: Tensor | None
    stream: Tensor
