"""The weights of a layer behind its attention."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Products are [outputs, inputs]. Norms are those of what the product of that name adds to the stream, but
    `gate_up_norm`, which is of what it takes."""

    output: Tensor
    output_norm: Tensor
    gate_up_norm: Tensor
    gate_up: Tensor  # all gates, then all they open
    down: Tensor
    down_norm: Tensor
    # Of the per-layer input, where the model has one.
    gate: Tensor | None = None
    projection: Tensor | None = None
    projection_norm: Tensor | None = None
    scale: Tensor | None = None  # of the whole stream in the end, [1]
    eps: float
