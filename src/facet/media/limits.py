"""Defines how large media may be; checked before the work that a larger one would cost is done."""

from dataclasses import dataclass

from facet.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    max_bytes: int = 32 << 20  # of one file, as it was sent
    max_pixels: int = 64 << 20  # of one picture, or one frame of a video
    max_side: int = 32_768  # of a picture, in pixels
    max_seconds: float = 30.0  # to decode and prepare one item
    max_sound_seconds: float = 1_800.0  # of sound; a model may take less
    max_sampling_rate: int = 192_000
    max_channels: int = 32
    max_frames: int = 100_000  # in a video, of which a few are prepared


def refused(message: str) -> RequestError:
    return RequestError(message, field="messages")
