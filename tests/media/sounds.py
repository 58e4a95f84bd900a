"""Sound and video made for tests: files in many containers and codecs."""

import io
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray


def tones(seconds: float, rate: int, num_channels: int = 1, seed: int = 0) -> NDArray[np.float32]:
    """[samples, channels] of rising tones and a little noise."""
    random = np.random.default_rng(seed)
    times = np.arange(round(seconds * rate)) / rate
    start, slope = random.uniform(80, 600, num_channels), random.uniform(100, 2000, num_channels)
    waves = 0.3 * np.sin(2 * np.pi * (start + slope * times[:, None]) * times[:, None])
    return (waves + random.normal(0, 0.02, waves.shape)).astype(np.float32)


def wav(
    samples: NDArray[Any], rate: int, *, code: int = 1, extensible: bool = False, data_size: int | None = None
) -> bytes:
    """[samples, channels] as they are, with a header that says what they are."""
    width, channels = samples.dtype.itemsize, samples.shape[1]
    data = samples.astype(samples.dtype.newbyteorder("<")).tobytes()
    tag = 0xFFFE if extensible else code
    header = struct.pack("<HHIIHH", tag, channels, rate, rate * width * channels, width * channels, 8 * width)
    if extensible:
        header += struct.pack("<HHIH14s", 22, 8 * width, 0, code, b"\0" * 14)
    size = len(data) if data_size is None else data_size
    chunks = b"fmt " + struct.pack("<I", len(header)) + header
    chunks += b"LIST" + struct.pack("<I", 3) + b"abc\0"  # an odd one, with its padding
    return b"RIFF\0\0\0\0WAVE" + chunks + b"data" + struct.pack("<I", size) + data


def encoded_sound(container: str, codec: str, seconds: float = 0.8, rate: int = 48_000, channels: int = 2) -> bytes:
    buffer = io.BytesIO()
    layout = {1: "mono", 2: "stereo"}[channels]
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        values = np.ascontiguousarray(tones(seconds, rate, channels).T)
        frame = av.AudioFrame.from_ndarray(values, format="fltp", layout=layout)
        frame.sample_rate = rate
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            file.mux(packet)
    return buffer.getvalue()


SOUND_FILES = {
    "mp3": ("mp3", "libmp3lame"),
    "flac": ("flac", "flac"),
    "ogg opus": ("ogg", "libopus"),
    "m4a": ("ipod", "aac"),
    "aac": ("adts", "aac"),
    "webm": ("webm", "libopus"),
    "wav mu-law": ("wav", "pcm_mulaw"),
}


def encoded_video(
    num_frames: int,
    frame_rate: Fraction | float,
    *,
    container: str = "mp4",
    codec: str = "mpeg4",
    size: tuple[int, int] = (64, 48),
    path: Path | None = None,
) -> bytes:
    """Every frame has its number as a shade of grey, in the upper half, above white.

    With a path, where it is written first, all of the header comes before the frames."""
    buffer = io.BytesIO()
    options = {} if path is None else {"movflags": "faststart"}
    with av.open(str(path or "") or buffer, "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=Fraction(frame_rate).limit_denominator(1001))
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 1_000_000
        for index in range(num_frames):
            pixels = np.full((size[1], size[0], 3), 255, dtype=np.uint8)
            pixels[: size[1] // 2] = shade(index)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode(None):
            file.mux(packet)
    return buffer.getvalue() if path is None else path.read_bytes()


def shade(index: int) -> int:
    return min(5 * index, 200)
