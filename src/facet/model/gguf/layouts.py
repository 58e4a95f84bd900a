"""How a tensor of a file of towers differs from that of a checkpoint. `tower_values.py` turns one into the other."""

import math
from typing import Literal

Layout = Literal[
    "scalar",  # stored as a vector of one
    "vector",  # stored with axes of one around it
    "pixels",  # of a patch: stored [.., channel, row, column], on one axis or three -> [.., row, column, channel]
    "places",  # stored [axis, place, ..] -> [place, axis, ..]
    "kernel",  # of a convolution of single channels: stored [channel, place] -> [channel, 1, place]
    "before softplus",  # stored is softplus of it
    "less one",  # stored is one more
]
IN_FLOAT32: tuple[Layout, ...] = ("before softplus", "less one")  # other numbers; else they lie in another order


def checkpoint_shape(layout: Layout, stored: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as a checkpoint has it. What cannot have such a shape stays as it is, and will be found misshapen."""
    if layout == "scalar" and math.prod(stored) == 1:
        return ()
    if layout == "vector":
        return (math.prod(stored),)
    if layout == "pixels":
        return (stored[0], math.prod(stored[1:])) if len(stored) > 1 else stored
    if layout == "places" and len(stored) == 3:
        return (stored[1], stored[0], stored[2])
    if layout == "kernel" and math.prod(stored) == stored[0] * stored[-1]:
        return (stored[0], 1, stored[-1])
    return stored
