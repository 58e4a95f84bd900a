"""Random noise as a pure function of seed, output position and token id.

Nothing is drawn from a generator that has a state, so a request's noise does not depend on its seat, on its
neighbours, on the step number, or on whether it was preempted. Knows nothing of logits. Here: seed and position to
a row's two keys, on the host; keys and token ids to noise is `facet.kernels.token_choice.noise`.
"""

import numpy as np
import numpy.typing as npt

from facet.kernels.token_choice.noise import exponential, random_bits, scramble_token_ids

__all__ = ["exponential", "noise_keys", "random_bits", "scramble_token_ids", "seed_states"]

_GOLDEN_64 = np.uint64(0x9E37_79B9_7F4A_7C15)


def seed_states(seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The per-request half of `noise_keys`, computed once per request."""
    return _mix_64(seeds + _GOLDEN_64)


def noise_keys(states: npt.NDArray[np.uint64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Two 32-bit keys [.., rows, 2] for each request at its output position (the number of tokens it has)."""
    mixed = _mix_64(states + positions.astype(np.uint64) * _GOLDEN_64)
    halves = np.stack([mixed & np.uint64(0xFFFF_FFFF), mixed >> np.uint64(32)], axis=-1)
    return halves.astype(np.uint32).view(np.int32)


def _mix_64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64; numpy's unsigned arrays wrap around, as it needs."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
