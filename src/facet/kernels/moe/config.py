"""Chooses how the products of experts are divided among programs: a pure function of their shapes."""

from dataclasses import dataclass

# Up to this many rows every pair of a row and one of its choices reads its expert by itself, at 2.6 TB/s on an H200.
# Sorted, experts are read at 3.7: 26B-A4B, 8 rows, 164 us and not 234.
MAX_PAIR_ROWS = 2


@dataclass(frozen=True, slots=True)
class TileConfig:
    """A program of a grouped product owns `block_rows` pairs of one expert and `block_out` rows of its weight."""

    block_rows: int
    block_out: int
    block_in: int
    num_warps: int
    num_stages: int
    may_halve: bool = False  # tiles that would be filled half or less are half as tall, or half as wide

    def tile_bytes(self, element_size: int) -> int:
        """The bytes of a tile of the pairs and of the weight."""
        return (self.block_rows + self.block_out) * self.block_in * element_size


def choose_tiles(
    num_pairs: int, num_experts: int, element_size: int, tall_from: int = 64
) -> tuple[TileConfig, TileConfig]:
    """The tiles of the product with gate and up, and of the one with down: about as tall as an expert has pairs.

    `tall_from`: how many pairs of an expert are many, of numbers of two bytes.
    """
    pairs_per_expert = num_pairs / num_experts
    if element_size > 2:  # float32 is for checking models, not for serving them: tiles small enough to fit anywhere
        config = TileConfig(block_rows=16, block_out=32, block_in=32, num_warps=4, num_stages=2)
    elif element_size == 1:
        return _choose_tiles_of_codes(pairs_per_expert)
    elif pairs_per_expert <= 16:  # bound by reading the experts: many loads in flight, as narrow a tile as a dot takes
        gate_up = TileConfig(block_rows=16, block_out=64, block_in=128, num_warps=4, num_stages=4)
        return gate_up, TileConfig(block_rows=16, block_out=64, block_in=64, num_warps=4, num_stages=5)
    elif pairs_per_expert < tall_from:
        config = TileConfig(block_rows=64, block_out=128, block_in=64, num_warps=4, num_stages=4)
    else:
        # Measured at 128 pairs and more. With 2048 rows of 26B-A4B, an expert has 128 pairs or so, and its gate and up
        # 5.5 times the outputs of a tile: all experts of a layer take 556 us on an H200 in these tiles by the kernel
        # for Hopper GPUs, 635 in Triton, and 800 in the smaller ones above.
        config = TileConfig(block_rows=128, block_out=256, block_in=64, num_warps=8, num_stages=3, may_halve=True)
    return config, config


def _choose_tiles_of_codes(pairs_per_expert: float) -> tuple[TileConfig, TileConfig]:
    """The tiles for numbers of one byte: as for two bytes, with twice the inputs; not yet timed one by one."""
    if pairs_per_expert <= 16:
        gate_up = TileConfig(block_rows=16, block_out=64, block_in=256, num_warps=4, num_stages=4)
        return gate_up, TileConfig(block_rows=16, block_out=64, block_in=128, num_warps=4, num_stages=5)
    if pairs_per_expert <= 128:
        config = TileConfig(block_rows=64, block_out=128, block_in=128, num_warps=4, num_stages=4)
    else:
        config = TileConfig(block_rows=128, block_out=128, block_in=128, num_warps=8, num_stages=3)
    return config, config


def invariant_tiles(num_pairs: int, num_experts: int, element_size: int) -> tuple[TileConfig, TileConfig]:
    """Tiles in which a row is multiplied alike wherever it stands and however many pairs there are.

    Of two bytes, all tiles leave the same bits (`linear/chain.py`), and of four there is only one. Sums of fp8 are
    rounded at the end of each tile's inputs: their number is always the same.
    """
    if element_size > 1:
        return choose_tiles(num_pairs, num_experts, element_size)
    config = TileConfig(block_rows=64, block_out=64, block_in=128, num_warps=4, num_stages=4)
    return config, config
