"""Chooses how a matrix product of few rows is divided among programs, or leaves it to cuBLAS, by its shape alone.

A program of the one kind multiplies its rows of the weight by x in plain float32 arithmetic; its threads lie side by
side along `in`, so that a weight row is already split over all of them and no second pass over partial sums is needed,
however narrow the output. For many rows that arithmetic takes longer than reading the weight: the other kind leaves it
to tensor cores, and needs outputs enough to occupy all multiprocessors with wide tiles.

Times in this file are microseconds on an H200 in bfloat16, the weight read from memory, launched from a CUDA graph
(benchmarks/linear_gpu.py). Those of cuBLAS leave out the activation after gate_up and after the per-layer gate, 1.2 to
1.3 more there, which the programs include.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# The most rows a program of the float32 kernel takes, whose sums must fit into registers. More rows are more programs.
MAX_VECTOR_ROWS = 4
# The rows of a tensor core tile, some of them padding.
NUM_DOT_ROWS = 16
# Up to this many rows the Triton kernels may run, beyond it cuBLAS. One tensor core tile takes up to 3% longer when
# full than with 4 rows; taller ones pay where outputs are very many.
MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class Config:
    """A program owns `block_out` rows of the weight and walks along them `block_in` columns at a time."""

    is_dot: bool  # tensor cores, or float32 arithmetic
    block_out: int
    block_in: int
    num_warps: int
    num_stages: int  # tiles on their way to shared memory at a time; 1: straight to registers
    num_rows: int = NUM_DOT_ROWS  # of a tensor core tile, some of them padding

    def tile_bytes(self, element_size: int) -> int:
        """The bytes of a tile of the weight and of x, where they pass through shared memory."""
        return (self.block_out + self.num_rows) * self.block_in * element_size


def _vector(block_out: int, num_warps: int, block_in: int | None = None) -> Config:
    # 256 columns are one 16-byte load for each thread of a warp.
    return Config(
        is_dot=False, block_out=block_out, block_in=block_in or 256 * num_warps, num_warps=num_warps, num_stages=1
    )


def _dot(block_out: int, block_in: int, num_warps: int, num_stages: int, num_rows: int = NUM_DOT_ROWS) -> Config:
    return Config(
        is_dot=True,
        block_out=block_out,
        block_in=block_in,
        num_warps=num_warps,
        num_stages=num_stages,
        num_rows=num_rows,
    )


# Rows, outputs and inputs at which the rules below lose 2.8% or more. No rule was found that has them all: presumably
# it matters how many programs the multiprocessors hold at once, and whether a last few are left over.
EXCEPTIONS: Mapping[tuple[int, int, int], Config] = MappingProxyType(
    {
        (1, 2560, 10240): _vector(4, 4),  # E4B down: 15.0, by the rule 17.2, cuBLAS 17.1
        (2, 2560, 4096): _vector(4, 4),  # E4B o of a global layer: 8.6, by the rule 9.5, cuBLAS 9.7
        (1, 43008, 5376): _vector(4, 1, block_in=512),  # 31B gate_up: 106.6, by the rule 109.6, cuBLAS 108.1
        (1, 16384, 5376): _vector(4, 1),  # 31B qkv of a sliding layer: 41.8, by the rule 43.3, cuBLAS 43.1
    }
)


# 17 to 32 rows. With 4 stages, 32 rows of E4B's down take 29.0 and not 22.0, of 26B-A4B's gate_up 9.3 and not 8.3; with
# long rows and more outputs it is the other way round, 31B's down 67.8 and 77.8.
_TALL = _dot(64, 128, num_warps=4, num_stages=6, num_rows=32)

# In one chain of sums (`chain.py`), where the rules below leave a product to cuBLAS, which may not serve. Few outputs
# are few programs, which need more of their inputs on the way. 8 rows: E4B down 19.7, and 27.1 with 4 stages; 31B down
# 66.3, and 72.8 with 6.
_FEW_CHAINS = _dot(64, 128, num_warps=4, num_stages=4)
_FEW_CHAINS_OF_FEW_OUTPUTS = _dot(64, 128, num_warps=4, num_stages=6)
_MANY_CHAINS = _dot(128, 64, num_warps=8, num_stages=4, num_rows=128)
# Float32 is for checking models, not for serving them: small enough to fit anywhere.
_FLOAT32_CHAINS = _dot(32, 32, num_warps=4, num_stages=2)


def choose_config(num_rows: int, num_out: int, num_in: int) -> Config | None:
    """The configuration for a shape. None: cuBLAS, which is better or about as good, or the shape is unlike those that
    were timed.

    Within one configuration a row's result does not depend, bit for bit, on how many share the call. A shape has one
    for 1 row, one for 2, one for 3 to 8, one for 9 to 16, one for 17 to 32 and one for 33 to 64, some of them the same;
    from one to another, and at any change of row count with cuBLAS, the last bits of a sum may differ.
    """
    if not 0 < num_rows <= MAX_ROWS:
        return None
    if num_rows > NUM_DOT_ROWS:
        return _choose_tall(num_rows, num_out, num_in)
    exception = EXCEPTIONS.get((num_rows, num_out, num_in))
    if exception is not None:
        return exception
    if num_out <= 512:
        max_vector_rows = 8
    elif num_out < 3072 or num_in <= 512:
        max_vector_rows = 2
    else:
        max_vector_rows = 1
    return _choose_vector(num_out, num_in) if num_rows <= max_vector_rows else _choose_dot(num_out, num_in)


def _choose_vector(num_out: int, num_in: int) -> Config:
    """A configuration in float32 arithmetic. Programs should number a few hundred at least, and each have several loads
    on their way at once."""
    if num_in <= 512:
        # E4B per-layer projection: 1 row 2.1, cuBLAS 3.2 (0.67); 2 rows 2.2 (0.70).
        return _vector(4, 1)
    if num_out <= 512:
        # E4B per-layer gate: 1 row 3.3, cuBLAS 6.4 (0.52); 2 rows 3.9 (0.61), 4 rows 5.2 (0.81), 8 rows 5.3 (0.82).
        return _vector(4, 8)
    if num_out >= 3072 and num_in < 8192:
        # 1 row of E4B: gate_up 26.1, cuBLAS 28.5 (0.92); qkv sliding 6.2 (0.83), qkv global 9.7 (0.91), q global 7.2
        # (0.89), lm_head 296 (0.83). Of 31B: qkv global 47.6 (0.90), lm_head 620 (0.83).
        return _vector(4, 2)
    # 1 row of E4B: q sliding 4.8, cuBLAS 6.8 (0.72); o sliding 4.5 (0.72), o global 7.0 (0.73).
    # Of 31B: down 56.1 (0.97), o sliding 23.0 (0.91), o global 42.2 (0.92).
    # 2 rows of E4B: down 15.8 (0.92), q sliding 5.7 (0.84), o sliding 4.9 (0.78).
    return _vector(2, 4)


def _choose_dot(num_out: int, num_in: int) -> Config | None:
    """A configuration for tensor cores, timed at 4, 8 and 16 rows. 2 and 3 are padded to the same tile and read the
    same weight.

    2 rows come here where outputs are many: there the float32 kernel is slower than cuBLAS or no faster than this one.
    """
    if num_in <= 512:
        # E4B per-layer projection: 2.7, cuBLAS 3.2 (0.85).
        return _dot(64, 128, num_warps=4, num_stages=4)
    if num_out <= 512:
        # E4B per-layer gate, 16 rows: 6.0, cuBLAS 6.4 (0.93).
        return _dot(16, 512, num_warps=4, num_stages=3)
    if num_out >= 20480 and num_in <= 4096:
        # E4B gate_up: 27.8 to 28.2, cuBLAS 29.3 to 29.5 (0.95); lm_head 305 to 315 (0.86 to 0.88).
        return _dot(32, 128, num_warps=2, num_stages=6)
    if num_out >= 20480:
        # 31B gate_up: 106.9 to 108.0, cuBLAS 108.8 to 110.5 (0.98, and the activation); lm_head 629 to 641 (0.85).
        return _dot(64, 128, num_warps=4, num_stages=4)
    if 5376 <= num_out <= 6144 and num_in <= 4096:
        # E4B qkv global: 9.8, cuBLAS 10.6 to 11.2 (0.88 to 0.92).
        return _dot(64, 128, num_warps=4, num_stages=6)
    # The best that was found for the others. E4B: down 1.15 of cuBLAS, qkv sliding 1.00, q sliding 1.04, q global 0.98,
    # o sliding 0.95 to 0.97 (6.0 for 6.2), o global 1.01. 31B: down 1.02, qkv sliding 0.98, qkv global 0.96 to 0.97,
    # o sliding and o global 0.92 in one run and 1.03 to 1.15 in another.
    return None


def _choose_tall(num_rows: int, num_out: int, num_in: int) -> Config | None:
    """Serves 17 to 64 rows with very many outputs, of which cuBLAS makes too many tiles, with very few inputs, or with
    an activation behind the product, which cuBLAS leaves to another kernel."""
    if num_in <= 512:
        # E4B per-layer projection: 2.3, cuBLAS 2.9 to 3.3; beyond 32 rows 2.5, cuBLAS 3.3.
        return _TALL if num_rows <= 32 else _dot(64, 128, num_warps=4, num_stages=4, num_rows=64)
    if num_out >= 20480 and num_rows <= 32:
        # With the activation. E4B gate_up: 30.0 to 30.5, cuBLAS 30.7 to 32.1; lm_head 314 to 321, cuBLAS 332 to 338.
        # 31B gate_up: 107.8 to 109.3, cuBLAS 112.0 to 122.9; lm_head 648 to 661, cuBLAS 690 to 694.
        return _dot(64, 128, num_warps=4, num_stages=4, num_rows=32)
    if num_rows <= 32 and (256 <= num_out <= 512 or (4096 <= num_out <= 8192 and num_in <= 4096)):
        # E4B per-layer gate: 7.0, cuBLAS 7.4 with the activation; qkv global 10.7, 10.9; q global 7.6, 8.0. 26B-A4B
        # gate_up: 8.3, 11.4 with the activation; qkv 12.8, 13.8. E4B qkv sliding would take 7.3, and takes 6.9.
        return _TALL
    if num_out >= 40960:
        # 31B gate_up: 114.2 to 115.8, cuBLAS 116.0 to 118.1; lm_head 688 to 698, cuBLAS 698 to 744; E4B lm_head 334 to
        # 339, cuBLAS 341 to 363. E4B gate_up takes 33.6 to 33.7, cuBLAS 33.1 to 31.2.
        return _dot(64, 64, num_warps=4, num_stages=6, num_rows=64)
    return None


def choose_chain(num_rows: int, num_out: int, num_in: int, element_size: int) -> Config:
    """Tiles for a product in one chain of sums, whose bits do not depend on them; of float32, one for all rows."""
    if element_size > 2:
        return _FLOAT32_CHAINS
    chosen = _choose_dot(num_out, num_in) if num_rows <= NUM_DOT_ROWS else _choose_tall(num_rows, num_out, num_in)
    if chosen is not None:
        return chosen
    if num_rows > MAX_ROWS:
        return _MANY_CHAINS
    if num_rows > NUM_DOT_ROWS:
        is_deep = num_rows <= 32 and (num_out < 5376 or num_in <= 4096)
        return _TALL if is_deep else _dot(64, 128, num_warps=4, num_stages=4, num_rows=32 if num_rows <= 32 else 64)
    return _FEW_CHAINS if num_out >= 5376 else _FEW_CHAINS_OF_FEW_OUTPUTS


def may_prefer_library(num_rows: int, num_out: int, num_in: int) -> bool:
    """Whether cuBLAS can be faster than the chains here, if it sums in one chain too."""
    return num_rows > MAX_ROWS or (num_rows > NUM_DOT_ROWS and _choose_tall(num_rows, num_out, num_in) is None)
