"""Computes the noise of a race between tokens: an exponential variate from a row's two keys and a token id.

The hash is arithmetic modulo 2**32, held in int32, whose products wrap around on every device torch runs on:
the bits are the same everywhere. Only the last step, a logarithm, may differ by device, in the last place.
Knows nothing of logits, nor of how keys come from seeds.
"""

import torch
from torch import Tensor

# Shifts and multipliers of a 32-bit mixer known for low avalanche bias (from the "hash prospector" search).
SHIFTS = (16, 15, 15)
MULTIPLIERS = (0x21F0_AAAD, 0x735A_2D97)
GOLDEN_32 = 0x9E37_79B1
TO_NEGATIVE_UNIFORM = -(1 - 2.0**-24) * 2.0**-31


def scramble_token_ids(token_ids: Tensor) -> Tensor:
    """The key-free half of the hash, int32. For a whole vocabulary it is computed once and kept."""
    bits = token_ids.to(torch.int32) * (GOLDEN_32 - 2**32)  # as int32
    scratch = torch.empty_like(bits)
    _fold(bits, SHIFTS[0], scratch).mul_(MULTIPLIERS[0])
    return _finish(bits, scratch)


def random_bits(keys: Tensor, scrambled_ids: Tensor) -> Tensor:
    """32 random bits as int32 [rows, ids], for keys [rows, 2] and scrambled ids [ids] or [rows, ids]."""
    bits = scrambled_ids ^ keys[:, :1]
    scratch = torch.empty_like(bits)
    _fold(bits, SHIFTS[0], scratch).mul_(MULTIPLIERS[0])
    return _finish(bits.bitwise_xor_(keys[:, 1:]), scratch)


def exponential(bits: Tensor) -> Tensor:
    """Exponential variates, float32, from 32 random bits.

    -log(1 - u) with u = |bits + 1/2| / 2**31. The small variates, which win a race, come from bits near zero,
    where float32 keeps them all. The scale is a hair below 2**-31, so that u stays off 1 as it stays off 0, and
    the result is finite and above 0.
    """
    return torch.add(bits, 0.5).abs_().mul_(TO_NEGATIVE_UNIFORM).log1p_().neg_()


def _fold(bits: Tensor, shift: int, scratch: Tensor) -> Tensor:
    """bits ^= bits >> shift, filling with zeros (torch's own shift repeats the sign).

    One scratch for all folds: on a CPU a fresh temporary per operation costs more than the operation.
    """
    shifted = torch.bitwise_right_shift(bits, shift, out=scratch).bitwise_and_((1 << (32 - shift)) - 1)
    return bits.bitwise_xor_(shifted)


def _finish(bits: Tensor, scratch: Tensor) -> Tensor:
    _fold(bits, SHIFTS[1], scratch).mul_(MULTIPLIERS[1])
    return _fold(bits, SHIFTS[2], scratch)
