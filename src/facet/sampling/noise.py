"""Random numbers as a function: (seed, output position, token id) -> noise.

Nothing is drawn from a generator that has a state, so a request's noise does not depend on its row, on its
neighbours, on the step number, or on whether it was preempted. Knows nothing of logits.

The hash is arithmetic modulo 2**32, held in int32, whose products wrap around on every device torch runs on:
the bits are the same everywhere. Only the last step, a logarithm, may differ by device, in the last place.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Shifts and multipliers of a 32-bit mixer known for low avalanche bias (from the "hash prospector" search).
_SHIFTS = (16, 15, 15)
_MULTIPLIERS = (0x21F0_AAAD, 0x735A_2D97)
_GOLDEN_32 = 0x9E37_79B1 - 2**32  # as int32
_TO_NEGATIVE_UNIFORM = -(1 - 2.0**-24) * 2.0**-31
_GOLDEN_64 = np.uint64(0x9E37_79B9_7F4A_7C15)


def seed_states(seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The per-request half of `noise_keys`, computed once per request."""
    return _mix_64(seeds + _GOLDEN_64)


def noise_keys(states: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Two 32-bit keys [rows, 2] for each request at its output position (the number of tokens it has)."""
    mixed = _mix_64(states + positions.astype(np.uint64) * _GOLDEN_64)
    halves = np.stack([mixed & np.uint64(0xFFFF_FFFF), mixed >> np.uint64(32)], axis=-1)
    return halves.astype(np.uint32).view(np.int32)


def scramble_token_ids(token_ids: Tensor) -> Tensor:
    """The key-free half of the hash, int32. For a whole vocabulary it is computed once and kept."""
    bits = token_ids.to(torch.int32) * _GOLDEN_32
    scratch = torch.empty_like(bits)
    _fold(bits, _SHIFTS[0], scratch).mul_(_MULTIPLIERS[0])
    return _finish(bits, scratch)


def random_bits(keys: Tensor, scrambled_ids: Tensor) -> Tensor:
    """32 random bits as int32 [rows, ids], for keys [rows, 2] and scrambled ids [ids] or [rows, ids]."""
    bits = scrambled_ids ^ keys[:, :1]
    scratch = torch.empty_like(bits)
    _fold(bits, _SHIFTS[0], scratch).mul_(_MULTIPLIERS[0])
    return _finish(bits.bitwise_xor_(keys[:, 1:]), scratch)


def exponential(bits: Tensor) -> Tensor:
    """Exponential variates, float32, from 32 random bits.

    -log(1 - u) with u = |bits + 1/2| / 2**31. The small variates, which win a race, come from bits near zero,
    where float32 keeps them all. The scale is a hair below 2**-31, so that u stays off 1 as it stays off 0, and
    the result is finite and above 0.
    """
    return torch.add(bits, 0.5).abs_().mul_(_TO_NEGATIVE_UNIFORM).log1p_().neg_()


def _fold(bits: Tensor, shift: int, scratch: Tensor) -> Tensor:
    """bits ^= bits >> shift, filling with zeros (torch's own shift repeats the sign).

    One scratch for all folds: on a CPU a fresh temporary per operation costs more than the operation.
    """
    shifted = torch.bitwise_right_shift(bits, shift, out=scratch).bitwise_and_((1 << (32 - shift)) - 1)
    return bits.bitwise_xor_(shifted)


def _finish(bits: Tensor, scratch: Tensor) -> Tensor:
    _fold(bits, _SHIFTS[1], scratch).mul_(_MULTIPLIERS[1])
    return _fold(bits, _SHIFTS[2], scratch)


def _mix_64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64; numpy's unsigned arrays wrap around, as it needs."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
