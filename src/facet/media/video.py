"""Prepares frames of a video: chooses them evenly, and makes of each a picture with its time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from facet.media.options import MediaOptions
from facet.media.pictures import prepare_patches
from facet.media.spec import Videos
from facet.prepared_media import PreparedMedia, content_key

USUAL_FRAME_RATE = 24  # where nobody says


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """A picture of a video."""

    timestamp: float  # in seconds
    pixels: NDArray[np.uint8]  # [height, width, red green blue]


def sample_frames(total: int, num_frames: int) -> list[int]:
    """The indices of `num_frames` of `total` pictures, evenly spaced from the first on; all, where there are fewer."""
    count = min(total, num_frames)
    return [index * total // count for index in range(count)]


def frames_wanted(spec: Videos, options: MediaOptions) -> int:
    return options.num_frames or spec.num_frames


def prepare_frame(frame: VideoFrame, content: bytes, spec: Videos, options: MediaOptions) -> PreparedMedia:
    """Prepares a frame. `content`, with the time, names what is seen."""
    budget = options.max_soft_tokens or spec.frames.budget
    key = content_key(content, "video", spec.frames, budget, frame.timestamp)
    picture = Image.fromarray(frame.pixels)
    return prepare_patches(picture, spec.frames, budget, key, kind="video", timestamp=frame.timestamp)
