"""Prepares media that a program has in memory: Pillow images, arrays of pixels, samples and frames.

That happens in the caller's process: there is no file to distrust.
"""

from collections.abc import Mapping
from numbers import Integral
from typing import TYPE_CHECKING, Any

from facet.chat.media_parts import MediaPart
from facet.media.limits import MediaLimits, refused
from facet.media.spec import MediaSpec
from facet.media_span import MediaKind
from facet.prepared_media import PreparedMedia, content_key

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from facet.media.sound_waveform import Waveform
    from facet.media.video import VideoFrame

_WANTED: Mapping[MediaKind, str] = {
    "image": "a path, the bytes of a file, a Pillow image, or an array of bytes [height, width, 3]",
    "audio": "a path, the bytes of a file, an array of one channel of floats, or the array and its sampling rate",
    "video": "a path, the bytes of a file, an array of bytes [frames, height, width, 3], a list of pictures, or one of "
    "these two and the frames per second",
}


def items_of(kind: str, values: object) -> list[Any]:
    """One value, or each of several. A list of pictures is one video."""
    if not isinstance(values, list) or (kind == "video" and values and _is_picture(values[0])):
        return [values]
    return values


def prepare_value(part: MediaPart, spec: MediaSpec) -> tuple[PreparedMedia, ...]:
    match part.kind:
        case "image":
            return _prepare_picture(part, spec)
        case "audio":
            return _prepare_sound(part, spec)
        case "video":
            return _prepare_video(part, spec)


def _prepare_picture(part: MediaPart, spec: MediaSpec) -> tuple[PreparedMedia, ...]:
    from facet.media.pictures import prepare_picture

    assert spec.pictures is not None, "kinds that the model does not take were refused"
    if not _is_picture(part.value):
        raise _of_other_type(part)
    image = _as_picture(part.value, part.where)
    return prepare_picture(image, spec.pictures, part.options, repr(image.size).encode() + image.tobytes())


def _prepare_sound(part: MediaPart, spec: MediaSpec) -> tuple[PreparedMedia, ...]:
    from facet.media.sound import prepare_sound
    from facet.media.sound_waveform import check_sound, limits_of_sounds

    assert spec.sounds is not None, "kinds that the model does not take were refused"
    waveform = _as_waveform(part, spec.sounds.sampling_rate)
    limits = limits_of_sounds(spec.sounds, MediaLimits())
    check_sound(waveform.rate, 1, len(waveform.samples) / waveform.rate, limits, part.where)
    key = content_key(waveform.samples.tobytes(), "samples", waveform.rate, spec.sounds)
    return (prepare_sound(waveform, spec.sounds, key, part.where),)


def _prepare_video(part: MediaPart, spec: MediaSpec) -> tuple[PreparedMedia, ...]:
    from facet.media.video import frames_wanted, prepare_frame

    assert spec.videos is not None, "kinds that the model does not take were refused"
    frames = _as_frames(part, frames_wanted(spec.videos, part.options))
    return tuple(
        prepare_frame(frame, repr(frame.pixels.shape).encode() + frame.pixels.tobytes(), spec.videos, part.options)
        for frame in frames
    )


def _is_picture(value: Any) -> bool:
    from PIL import Image

    if isinstance(value, Image.Image):
        return 0 not in value.size
    return _is_pixels(value, num_dimensions=3)


def _is_pixels(value: Any, num_dimensions: int) -> bool:
    shape: Any = getattr(value, "shape", ())
    is_bytes = str(getattr(value, "dtype", "")) == "uint8"
    return is_bytes and len(shape) == num_dimensions and shape[-1] == 3 and 0 not in shape


def _as_picture(value: Any, where: str) -> "Image.Image":
    """The pixels that a file of it would give. Pillow reads a file when its pixels are wanted."""
    from PIL import Image

    from facet.media.opening import upright_rgb

    if not isinstance(value, Image.Image):
        return Image.fromarray(value)
    try:
        return upright_rgb(value.copy())
    except (OSError, ValueError) as error:
        raise refused(f"{where} is a Pillow image that cannot be loaded ({error}). Give one with its pixels.") from None


def _as_waveform(part: MediaPart, usual_rate: int) -> "Waveform":
    """Samples from -1 to 1, at the model's rate or with a rate of their own."""
    import numpy as np

    from facet.media.sound_waveform import Waveform

    value: Any = part.value
    samples, rate = value if isinstance(value, tuple) and len(value) == 2 else (value, usual_rate)
    is_sound = str(getattr(samples, "dtype", "")).startswith("float") and len(getattr(samples, "shape", ())) == 1
    if not is_sound or not isinstance(rate, Integral) or rate < 1:
        raise _of_other_type(part)
    return Waveform(int(rate), np.asarray(samples, np.float32))


def _as_frames(part: MediaPart, num_frames: int) -> "list[VideoFrame]":
    """Evenly chosen ones. Beside them may stand the rate, or vLLM's metadata, which may name the frames given."""
    from facet.media.video import USUAL_FRAME_RATE, VideoFrame, sample_frames

    value: Any = part.value
    pictures, said = value if isinstance(value, tuple) and len(value) == 2 else (value, {})
    metadata = said if isinstance(said, Mapping) else {"fps": said}
    rate = metadata.get("fps", USUAL_FRAME_RATE)
    is_video = (isinstance(pictures, list) and len(pictures) > 0 and all(map(_is_picture, pictures))) or _is_pixels(
        pictures, num_dimensions=4
    )
    if not is_video or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise _of_other_type(part)
    numbers = metadata.get("frames_indices")
    if numbers is None:
        numbers = range(len(pictures))
    if len(numbers) != len(pictures):
        raise refused(f"{part.where} has {len(pictures)} frames, but {len(numbers)} frames_indices. Give one for each.")
    chosen = sample_frames(len(pictures), num_frames)
    return [VideoFrame(float(numbers[index] / rate), _as_pixels(pictures[index], part.where)) for index in chosen]


def _as_pixels(value: Any, where: str) -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.ascontiguousarray(_as_picture(value, where))


def _of_other_type(part: MediaPart) -> Exception:
    return refused(f"{part.where} is {_description(part.value)}. Give {_WANTED[part.kind]}.")


def _description(value: Any) -> str:
    """The type, and for an array or a Pillow image what may be wrong with it besides."""
    if isinstance(value, tuple):
        return "a tuple: " + ", ".join(map(_description, value[:4]))
    name = f"of type {type(value).__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{name}, {value.dtype} {list(value.shape)}"
    if isinstance(size := getattr(value, "size", None), tuple):
        return f"{name} with {' x '.join(map(str, size))} pixels"
    return name
