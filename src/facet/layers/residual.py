"""The residual stream on its way from layer to layer."""

from typing import NamedTuple

from torch import Tensor


class Residual(NamedTuple):
    """The stream, and the stream as the next layer's first norm leaves it, where the layer before has made that too:
    adding to the stream and normalising the sum is one kernel."""

    stream: Tensor
    normed: Tensor | None
