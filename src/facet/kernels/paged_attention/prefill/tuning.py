"""Chooses how prefill is divided among programs: a function of shapes, with the times behind it.

On an H200, 8192 rows of bfloat16: heads of 256, sliding, 307 TFLOP/s for E4B and 437 for 31B; heads of 512, global, 311
for E4B and 331 for 31B over 65536 keys. A large matrix product reaches 775.

What did not help: one loop that masks everywhere instead of three (291 and not 307 TFLOP/s for E4B sliding, 274 and not
288 for 31B over 65536 keys); scores of the next tile computed ahead of the weights of this one (286 and not 307 for E4B
sliding, 274 and not 311 for E4B global); two small programs on a multiprocessor (423 and not 437 for 31B sliding, 235
and not 311 for E4B global). Nor did rescaling sums only where the greatest score has grown by much, nor warps
specialized by the compiler.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillTuning:
    """How the work is cut and scheduled; results agree within rounding whatever is chosen here."""

    block_m: int  # rows of a product
    block_n: int  # keys of a tile
    num_warps: int
    num_stages: int
    # For separate keys and values only:
    use_tma: bool = False  # tiles come through the tensor memory accelerator, or through plain loads
    num_parts: int = 1  # programs that share a head's output dimensions, each with all the scores


# Products of float32 run on no tensor core and keep their operands in registers: correct, not fast.
_FLOAT32 = PrefillTuning(block_m=16, block_n=16, num_warps=4, num_stages=1)


# The shared memory that the tiles chosen for an H200 take.
_SEPARATE_512_BYTES, _SEPARATE_256_BYTES, _SHARED_BYTES = 180_224, 114_688, 147_712


def separate_tuning(head_dim: int, element_size: int, shared_bytes: int) -> PrefillTuning:
    """What was the fastest on an H200, or else what fits in `shared_bytes`: not timed on any card that has fewer."""
    if element_size == 4:
        return _FLOAT32
    if head_dim > 256 and shared_bytes < _SEPARATE_512_BYTES:
        return PrefillTuning(block_m=64, block_n=16, num_warps=4, num_stages=2, num_parts=2)
    if head_dim > 128 and shared_bytes < _SEPARATE_256_BYTES:
        return PrefillTuning(block_m=64, block_n=32, num_warps=4, num_stages=2)
    if head_dim > 256:
        # Scores computed twice are cheaper than keys loaded twice: 64 rows of all dimensions took 2,009 us, this 1,770.
        return PrefillTuning(block_m=128, block_n=64, num_warps=8, num_stages=1, use_tma=True, num_parts=2)
    num_stages = 2 if head_dim > 128 else 3
    return PrefillTuning(block_m=128, block_n=64, num_warps=8, num_stages=num_stages, use_tma=True)


def shared_tuning(element_size: int, shared_bytes: int) -> PrefillTuning:
    """Like `separate_tuning`, for shared vectors."""
    if element_size == 4:
        return _FLOAT32
    if shared_bytes < _SHARED_BYTES:
        return PrefillTuning(block_m=32, block_n=32, num_warps=8, num_stages=2)
    # Over 65536 keys 99.7 ms; 104.2 with use_tma; 113.3 where both halves of the warps compute all scores.
    return PrefillTuning(block_m=64, block_n=64, num_warps=8, num_stages=2)
