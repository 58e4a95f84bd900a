"""One channel of sound, and the checks on sound before it is decoded."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from facet.media.limits import MediaLimits, refused
from facet.media.spec import Sounds

_SECONDS_TOO_MANY = 0.5  # that are no reason to refuse sound: encoders add a little silence


@dataclass(frozen=True, slots=True)
class Waveform:
    rate: int  # samples a second
    samples: NDArray[np.float32]  # from -1 to 1


def limits_of_sounds(spec: Sounds, limits: MediaLimits) -> MediaLimits:
    """The limits of sounds: those given, and no longer than the model hears."""
    if spec.max_samples is None:
        return limits
    return replace(limits, max_sound_seconds=min(limits.max_sound_seconds, spec.max_samples / spec.sampling_rate))


def check_sound(rate: int, num_channels: int, seconds: float, limits: MediaLimits, where: str) -> None:
    """Refuse what is too large. `seconds`: as far as is known; more may follow."""
    if rate > limits.max_sampling_rate:
        raise refused(f"{where} has {rate:,} samples a second, but at most {limits.max_sampling_rate:,} are allowed.")
    if num_channels > limits.max_channels:
        raise refused(f"{where} has {num_channels:,} channels, but at most {limits.max_channels} are allowed.")
    if seconds > limits.max_sound_seconds + _SECONDS_TOO_MANY:
        raise refused(f"{where} is longer than the {limits.max_sound_seconds:g} seconds allowed. Send a part of it.")
