"""Prepares sound as each family's reference does: the rate its model was trained with, then log-mel or raw frames."""

import numpy as np
from numpy.typing import NDArray

from facet.media.limits import refused
from facet.media.sound_mel import log_mel
from facet.media.sound_resample import resample
from facet.media.sound_waveform import Waveform
from facet.media.spec import Sounds
from facet.prepared_media import MediaArray, PreparedMedia

_LOUDEST = 64.0  # samples lie between -1 and 1, and somewhat beyond where sound was amplified


def prepare_sound(waveform: Waveform, spec: Sounds, key: str, where: str) -> PreparedMedia:
    """`key` names the content, `where` the item in error messages."""
    # Also false for what is no number.
    if not np.all(np.abs(waveform.samples) <= _LOUDEST):
        raise refused(f"{where} has samples beyond {_LOUDEST:g}, where 1 is loud, or that are no numbers.")
    samples = resample(waveform.samples, waveform.rate, spec.sampling_rate)[: spec.max_samples]
    features, features_per_token = _features(samples, spec)
    if not len(features):
        raise refused(f"{where} has {len(samples)} samples at {spec.sampling_rate} Hz, too few for this model to hear.")
    return PreparedMedia(
        kind="audio",
        content_key=key,
        num_tokens=spec.num_tokens or -(-len(features) // features_per_token),
        arrays={"features": MediaArray.from_numpy(features)},
    )


def _features(samples: NDArray[np.float32], spec: Sounds) -> tuple[NDArray[np.float32], int]:
    """The features, [frames, width], and how many frames become a soft token."""
    if spec.log_mel is not None:
        frames = log_mel(samples, spec.log_mel, spec.sampling_rate)
        return frames, spec.samples_per_token // spec.log_mel.hop_length
    whole = np.pad(samples, (0, -len(samples) % spec.samples_per_token))
    return whole.reshape(-1, spec.samples_per_token), 1
