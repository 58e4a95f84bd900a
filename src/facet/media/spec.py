"""Defines what a checkpoint does with media: kinds, sizes, budgets and token ids. Frozen.

`spec_file.py` reads it from config.json and the processor's files.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from facet.media_span import MediaKind

ResizeFilter = Literal["bilinear", "bicubic"]

# How many soft tokens a picture of Gemma 4 may become at most; the model was trained with these.
BUDGETS = (70, 140, 280, 560, 1120)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTokens:
    """The ids that one item becomes in a prompt: begin, a run of soft ones, end."""

    placeholder: int  # what a chat template writes for the item
    begin: int
    soft: int
    end: int
    text_around: str = ""  # ordinary text before `begin` and after `end`; it melts with its neighbours


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPictures:
    """Pictures that keep their aspect ratio and are cut into patches, as in Gemma 4."""

    tokens: MediaTokens
    patch_size: int  # in pixels: the side of what is one row of the tower's input
    token_size: int  # in pixels: the side of what becomes one soft token
    budget: int  # soft tokens of a picture, at most, where nobody asks for another number
    filter: ResizeFilter
    attends_both_ways: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PanAndScan:
    """When and how a picture far from square is also shown in crops, as in Gemma 3."""

    enabled: bool  # where nobody asks
    min_crop_size: int
    max_num_crops: int
    min_ratio: float  # of the long side to the short one


@dataclass(frozen=True, slots=True, kw_only=True)
class SquarePictures:
    """Pictures that are all resized to the same square, as in Gemma 3 and 3n."""

    tokens: MediaTokens
    side: int  # in pixels
    num_tokens: int
    filter: ResizeFilter
    attends_both_ways: bool
    pan_and_scan: PanAndScan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Videos:
    """Videos as pictures with the time before each."""

    frames: PatchPictures
    num_frames: int  # sampled evenly; fewer where the video has fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMel:
    """How samples become log-mel frames."""

    num_bins: int
    frame_length: int  # in samples
    hop_length: int
    fft_length: int
    min_frequency: float
    max_frequency: float
    preemphasis: float  # 0: none
    rounds_window: bool  # computes it in float32, which shows in quiet bins
    floor: float  # keeps the logarithm finite
    adds_floor: bool  # to every bin; otherwise the floor is a bin's least value
    left_padding: int  # zeros before the first sample
    right_multiple: int  # behind the last sample, zeros fill a clip up to a multiple of this many samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Sounds:
    """Clips of sound."""

    tokens: MediaTokens
    sampling_rate: int
    log_mel: LogMel | None  # None: frames of raw samples, as in the 12B
    samples_per_token: int
    num_tokens: int | None  # the same for every clip, as in Gemma 3n; None: by length
    max_samples: int | None  # what is longer is refused, where the reference cuts it without a word; None: any length


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpec:
    """What a checkpoint reads besides text; None: not this kind."""

    pictures: PatchPictures | SquarePictures | None = None
    sounds: Sounds | None = None
    videos: Videos | None = None

    def only(self, kinds: Collection[MediaKind]) -> "MediaSpec":
        """The spec without the kinds that are not named."""
        return MediaSpec(
            pictures=self.pictures if "image" in kinds else None,
            sounds=self.sounds if "audio" in kinds else None,
            videos=self.videos if "video" in kinds else None,
        )

    @property
    def kinds(self) -> tuple[MediaKind, ...]:
        return tuple(self.tokens)

    @property
    def tokens(self) -> Mapping[MediaKind, MediaTokens]:
        found: dict[MediaKind, MediaTokens] = {}
        if self.pictures is not None:
            found["image"] = self.pictures.tokens
        if self.sounds is not None:
            found["audio"] = self.sounds.tokens
        if self.videos is not None:
            found["video"] = self.videos.frames.tokens
        return found
