"""Decodes sound and video with FFmpeg, through PyAV. Only for processes that may die.

FFmpeg reads from memory, as the one container that the first bytes name, with every protocol off, so that no file can
make it open another.
"""

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from facet.media.limits import MediaLimits, refused
from facet.media.sound_waveform import Waveform, check_sound
from facet.media.video import USUAL_FRAME_RATE, VideoFrame, sample_frames

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

# FFmpeg's names of decoders.
_SOUND_CODECS = frozenset(
    {
        *("mp3", "mp3float", "aac", "flac", "vorbis", "opus", "alac"),
        *("pcm_u8", "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be"),
        *("pcm_f32le", "pcm_f32be", "pcm_alaw", "pcm_mulaw"),
    }
)
_VIDEO_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4"})


def decode_sound(data: bytes, container: str, limits: MediaLimits, where: str) -> Waveform:
    """The mean of all channels, at the rate of the file. `container` is FFmpeg's name for it."""
    with _opened(data, container, _SOUND_CODECS, where) as file:
        if not file.streams.audio:
            raise refused(f"{where} holds no sound.")
        stream = file.streams.audio[0]
        _check_codec(stream, _SOUND_CODECS, where)
        rate = stream.codec_context.sample_rate
        check_sound(rate, stream.codec_context.channels, _stated_seconds(file, stream), limits, where)
        parts: list[NDArray[np.float32]] = []
        num_samples = 0
        for frame in file.decode(stream):
            if frame.sample_rate != rate:
                raise refused(
                    f"{where} changes from {rate} to {frame.sample_rate} samples a second. Send it at one rate."
                )
            parts.append(_mono(frame))
            num_samples += len(parts[-1])
            check_sound(rate, frame.layout.nb_channels, num_samples / rate, limits, where)
        if not num_samples:
            raise refused(f"{where} holds no sound.")
        return Waveform(rate, np.concatenate(parts))


def decode_frames(
    data: bytes, container: str, num_frames: int, limits: MediaLimits, where: str
) -> Iterator[VideoFrame]:
    """`num_frames` pictures of a video, evenly chosen, or all it has, in their order."""
    with _opened(data, container, _VIDEO_CODECS, where) as file:
        if not file.streams.video:
            raise refused(f"{where} holds no video.")
        stream = file.streams.video[0]
        _check_codec(stream, _VIDEO_CODECS, where)
        _check_video(stream.codec_context.width, stream.codec_context.height, stream.frames, limits, where)
        total = _count_frames(file, stream, limits, where)
        chosen = sample_frames(total, num_frames)
        rate = stream.average_rate or Fraction(USUAL_FRAME_RATE)
        stream.thread_type = "AUTO"
        num_found = 0
        for index, frame in enumerate(file.decode(stream)):
            if index == chosen[num_found]:
                _check_video(frame.width, frame.height, total, limits, where)
                yield VideoFrame(float(index / rate), _upright(frame))
                num_found += 1
                if num_found == len(chosen):
                    return
        raise refused(f"{where} ends before picture {chosen[num_found]} of {total}: it is broken or cut short.")


@contextmanager
def _opened(data: bytes, container: str, codecs: frozenset[str], where: str) -> Iterator["InputContainer"]:
    """Opens a file. What FFmpeg finds wrong, here or while the file is decoded, is an error in words."""
    if importlib.util.find_spec("av") is None:
        raise refused(
            f"{where} needs PyAV, which this server has not. Install it with pip install 'facet-llm[media]', or send "
            "sound as PCM in a WAV file."
        )
    import av

    av.logging.set_level(None)
    options = {"protocol_whitelist": "none", "codec_whitelist": ",".join(sorted(codecs))}
    try:
        with av.open(io.BytesIO(data), "r", format=container, options=options, metadata_errors="replace") as file:
            yield file
    except av.FFmpegError as error:
        raise refused(f"{where} is broken or cut short ({error.strerror}). Send it again.") from None


def _check_codec(stream: "av.AudioStream | av.VideoStream", known: frozenset[str], where: str) -> None:
    # PyAV has no context for what FFmpeg does not know, whatever its types say.
    name = stream.codec_context.codec.name if stream.codec_context is not None else "something unknown"
    if name not in known:
        raise refused(f"{where} is encoded as {name}, which is not read. Known: {', '.join(sorted(known))}.")


def _check_video(width: int, height: int, num_frames: int, limits: MediaLimits, where: str) -> None:
    if width * height > limits.max_pixels or max(width, height) > limits.max_side:
        raise refused(
            f"{where} has {width} x {height} pixels, but at most {limits.max_pixels:,}, and {limits.max_side:,} on a "
            "side, are allowed. Make it smaller."
        )
    if num_frames > limits.max_frames:
        raise refused(f"{where} has more than {limits.max_frames:,} pictures. Send a part of it.")


def _mono(frame: "av.AudioFrame") -> NDArray[np.float32]:
    """The mean of the channels, from -1 to 1. FFmpeg's own mix would be louder."""
    values = frame.to_ndarray()  # [channels, samples], or [1, samples * channels]
    by_channel = values.reshape(-1, frame.layout.nb_channels) if frame.format.is_packed else values.T
    mean: NDArray[np.float32] = by_channel.astype(np.float32).mean(axis=1, dtype=np.float32)
    if by_channel.dtype == np.uint8:
        return (mean - np.float32(128)) / np.float32(128)
    if by_channel.dtype.kind == "i":
        return mean / np.float32(2 ** (8 * by_channel.dtype.itemsize - 1))
    return mean


def _stated_seconds(file: "InputContainer", stream: "av.AudioStream") -> float:
    """How long the file says it is, in seconds; 0: it does not say."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (file.duration or 0) / 1_000_000


def _count_frames(file: "InputContainer", stream: "av.VideoStream", limits: MediaLimits, where: str) -> int:
    """How many pictures will be shown. Counted: a header may lie, may not say, or may include what is cut away."""
    stored = shown = 0
    for packet in file.demux(stream):
        if packet.size:
            stored += 1
            shown += not packet.is_discard
            _check_video(0, 0, stored, limits, where)
    if not shown or stored < stream.frames:
        raise refused(f"{where} has {stored} of {stream.frames or 'its'} pictures: it is broken or cut short.")
    file.seek(0)
    return shown


def _upright(frame: "av.VideoFrame") -> NDArray[np.uint8]:
    """A frame as a player shows it: a telephone that is held upright stores its pictures lying down."""
    return np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))
