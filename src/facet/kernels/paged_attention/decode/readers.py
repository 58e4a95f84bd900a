"""The functions that a decode kernel reads a layer's cache with, one for each way of storing keys and values.

All have one signature, that of `attend_separate`, and return (sums of weighted values, greatest score, sum of weights)
of some query heads over one share of the keys. The sums come in segments of the head's dimensions, [heads, dims] each.
"""

from dataclasses import dataclass
from typing import Any

from facet.kernels.paged_attention.decode.separate import attend_separate
from facet.kernels.paged_attention.decode.separate_8bit import attend_separate_8bit
from facet.kernels.paged_attention.decode.shared import attend_shared
from facet.kernels.paged_attention.decode.shared_8bit import attend_shared_8bit
from facet.kernels.paged_attention.tiles import LEAST_TILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A function that reads a cache, and what it needs. `gpu.choose_reader` says which reads what."""

    attend: Any  # a function of Triton's language
    widens_to_half: bool = False  # stored bytes become float16 in registers
    least_heads: int = LEAST_TILE  # query heads come in so many, spare ones included


SEPARATE = Reader(attend=attend_separate)
SEPARATE_8BIT = Reader(attend=attend_separate_8bit, widens_to_half=True, least_heads=8)
SHARED = Reader(attend=attend_shared)
SHARED_8BIT = Reader(attend=attend_shared_8bit, widens_to_half=True)
