"""What the kernels share: floats as integers of the same order, noise, selection without sorting.

Keys: a logit becomes an int32 that compares as the logit does. NaN comes above everything, so that the largest key
of a row tells of it; what lies outside the vocabulary comes below everything, a masked token included.
"""

import triton
import triton.language as tl

from facet.kernels.token_choice import noise as definition

LACKING = tl.constexpr(-(2**31))
NAN_KEY = tl.constexpr(2**31 - 1)
INFINITY_KEY = tl.constexpr(0x7F80_0000)
MINUS_INFINITY_KEY = tl.constexpr(-0x7F80_0001)
NO_ID = tl.constexpr(2**31 - 1)
FIXED_POINT = tl.constexpr(2.0**44)

_GOLDEN = tl.constexpr(definition.GOLDEN_32)
_FIRST = tl.constexpr(definition.MULTIPLIERS[0])
_SECOND = tl.constexpr(definition.MULTIPLIERS[1])
_SHIFT_0 = tl.constexpr(definition.SHIFTS[0])
_SHIFT_1 = tl.constexpr(definition.SHIFTS[1])
_SHIFT_2 = tl.constexpr(definition.SHIFTS[2])
_TO_NEGATIVE_UNIFORM = tl.constexpr(definition.TO_NEGATIVE_UNIFORM)


@triton.jit
def keys_of(logits, is_live):
    """float32 -> int32 of the same order; minus zero ties with zero."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = tl.where(logits != logits, NAN_KEY, keys)
    return tl.where(is_live, keys, LACKING)


@triton.jit
def logits_of(keys):
    """The logits of keys: the way back, for keys of numbers."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def anchor_of(key):
    """A logit to subtract: the one of this key, or 0 where that is no finite number (the row is faulty, or a chunk
    masked, and the difference must not become NaN)."""
    is_finite = (key > MINUS_INFINITY_KEY) & (key < INFINITY_KEY)
    return logits_of(tl.where(is_finite, key, 0))


@triton.jit
def noise_of(ids, noise_keys, row):
    """`noise.exponential` of `noise.random_bits`."""
    low_key = tl.load(noise_keys + row * 2).to(tl.uint32, bitcast=True)
    high_key = tl.load(noise_keys + row * 2 + 1).to(tl.uint32, bitcast=True)
    bits = ids.to(tl.uint32) * tl.full(ids.shape, _GOLDEN, tl.uint32)
    bits = (bits ^ (bits >> _SHIFT_0)) * tl.full(ids.shape, _FIRST, tl.uint32)
    bits = (bits ^ (bits >> _SHIFT_1)) * tl.full(ids.shape, _SECOND, tl.uint32)
    bits = bits ^ (bits >> _SHIFT_2) ^ low_key
    bits = (bits ^ (bits >> _SHIFT_0)) * tl.full(ids.shape, _FIRST, tl.uint32)
    bits = bits ^ high_key
    bits = (bits ^ (bits >> _SHIFT_1)) * tl.full(ids.shape, _SECOND, tl.uint32)
    bits = bits ^ (bits >> _SHIFT_2)
    x = tl.abs(bits.to(tl.int32, bitcast=True).to(tl.float32) + 0.5) * _TO_NEGATIVE_UNIFORM
    # log1p(x) = x * log(w) / (w - 1) with w = 1 + x, rounded: the factor is smooth where w itself is coarse.
    w = 1.0 + x
    is_one = w == 1.0
    factor = tl.log(w) / tl.where(is_one, 1.0, w - 1.0)
    return -x * tl.where(is_one, 1.0, factor)


@triton.jit
def first_best(scores, ids):
    """(the largest score, the smallest id that has it)."""
    best = tl.max(scores, axis=0)
    return best, tl.min(tl.where(scores == best, ids, NO_ID), axis=0)


@triton.jit
def select_largest(keys, k):
    """Tells which of the keys are the k largest, the earlier first among equals: bit by bit, the largest threshold that
    k keys reach, then as many of its equals as are needed."""
    ordinals = keys.to(tl.uint32, bitcast=True) ^ 0x80000000
    threshold = tl.full([], 0, tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    for _ in range(32):
        candidate = threshold | bit
        num_reaching = tl.sum((ordinals >= candidate).to(tl.int32), axis=0)
        threshold = tl.where(num_reaching >= k, candidate, threshold)
        bit = bit >> 1
    is_above = ordinals > threshold
    is_equal = ordinals == threshold
    num_wanted = k - tl.sum(is_above.to(tl.int32), axis=0)
    return is_above | (is_equal & (tl.cumsum(is_equal.to(tl.int32), axis=0) <= num_wanted))
