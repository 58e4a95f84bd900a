"""Says which layers one launch can serve, and how it divides shared memory."""

from typing import NamedTuple

import torch

from facet.kernels.after_attention.weights import Weights

# One on each multiprocessor, all at the same time, since they wait for each other: no more than a card has. The sizes
# of every Gemma can be divided by it.
NUM_PROGRAMS = 128
NUM_WARPS = 4
# Rows of a weight and columns of a tile.
TILE_OUT, TILE_IN = 32, 256
# Rows of TILE_IN inputs that are loaded at once.
INPUTS = 64
# A norm adds the numbers of a row in the order of so many warps, each of which has 256 of 4096: as the kernel for
# several rows does where rows are long (`tile_of_few_rows`).
NORM_WARPS = 16
_NORM_BLOCK = 256 * NORM_WARPS
# Of a multiprocessor, but for what passes between warps that add.
_SHARED_BYTES = 232_448 - 1024
_LEAST_STAGES = 4


class Sizes(NamedTuple):
    hidden: int
    queries: int
    mlp: int
    per_layer: int  # 0: there is none

    @classmethod
    def of(cls, weights: Weights) -> "Sizes":
        hidden, queries = weights.output.shape
        return cls(hidden, queries, weights.down.shape[1], 0 if weights.gate is None else weights.gate.shape[0])

    @property
    def norm_block(self) -> int:
        return max(_NORM_BLOCK, 1 << (self.hidden - 1).bit_length())


def can_divide(sizes: Sizes, num_programs: int = NUM_PROGRAMS) -> bool:
    """Whether every program has as many outputs, and inputs are whole tiles."""
    outputs = (sizes.hidden, sizes.mlp, sizes.per_layer)
    inputs = (sizes.hidden, sizes.queries, sizes.mlp, sizes.per_layer)
    return (
        2 * sizes.hidden > _NORM_BLOCK
        and all(size % num_programs == 0 for size in outputs)
        and all(size % TILE_IN == 0 for size in inputs)
        and num_stages(sizes) >= _LEAST_STAGES
    )


def num_stages(sizes: Sizes) -> int:
    """Tiles that the ring holds: what is left of shared memory beside three rows."""
    parts = -(-max(sizes.queries, sizes.mlp) // (INPUTS * TILE_IN))
    rows = 2 * (parts * INPUTS * TILE_IN + 2 * sizes.norm_block)
    return (_SHARED_BYTES - rows) // (2 * TILE_OUT * TILE_IN)


def can_hold_all(device: torch.device) -> bool:
    """Whether all programs run at the same time."""
    return torch.cuda.get_device_properties(device).multi_processor_count >= NUM_PROGRAMS
