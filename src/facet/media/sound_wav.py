"""Reads WAV files without a library: PCM of 8, 16, 24 or 32 bits, and samples stored as floating point."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facet.errors import RequestError
from facet.media.limits import refused
from facet.media.sound_waveform import Waveform

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZES = (0, 0xFFFF_FFFF)  # what a program writes that does not know yet how long the sound will be


@dataclass(frozen=True, slots=True, kw_only=True)
class WavFile:
    """A file whose header has been read; its samples have not been looked at."""

    rate: int
    num_channels: int
    is_float: bool
    sample_bytes: int
    data: memoryview

    @property
    def num_samples(self) -> int:
        """The number of samples of each channel."""
        return len(self.data) // (self.sample_bytes * self.num_channels)

    def waveform(self) -> Waveform:
        """The mean of all channels."""
        whole = self.data[: self.num_samples * self.num_channels * self.sample_bytes]
        channels = self._values(whole).reshape(-1, self.num_channels)
        return Waveform(self.rate, channels.mean(axis=1, dtype=np.float32))

    def _values(self, data: memoryview) -> NDArray[np.float32]:
        if self.is_float:
            return np.frombuffer(data, f"<f{self.sample_bytes}").astype(np.float32)
        if self.sample_bytes == 1:  # the only unsigned ones
            return (np.frombuffer(data, np.uint8).astype(np.float32) - np.float32(128)) / np.float32(128)
        if self.sample_bytes == 3:
            wide = np.zeros((len(data) // 3, 4), dtype=np.uint8)
            wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            return wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        values = np.frombuffer(data, f"<i{self.sample_bytes}").astype(np.float32)
        return values / np.float32(2 ** (8 * self.sample_bytes - 1))


def is_wav(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav(data: bytes, where: str) -> WavFile | None:
    """A WAV file. None: its samples are compressed, and a decoder has to read them. Broken or cut short: an error."""

    def broken(what: str) -> RequestError:
        return refused(f"{where} is a WAV file that {what}: it is broken or cut short. Send it again.")

    chunks = _chunks(memoryview(data))
    header = next((body for name, body, _ in chunks if name == b"fmt "), None)
    if header is None or len(header) < 16:
        raise broken("has no format")
    samples = next(((body, size) for name, body, size in chunks if name == b"data"), None)
    if samples is None:
        raise broken("has no samples")
    body, promised = samples
    if len(body) < promised and promised not in _UNKNOWN_SIZES:
        raise broken(f"promises {promised:,} bytes of samples but has {len(body):,}")
    code, num_channels, rate, _, _, bits = struct.unpack("<HHIIHH", header[:16])
    if code == _EXTENSIBLE and len(header) >= 26:
        (code,) = struct.unpack("<H", header[24:26])
    if code not in (_PCM, _FLOAT):
        return None
    if bits not in ((8, 16, 24, 32) if code == _PCM else (32, 64)):
        raise broken(f"has samples of {bits} bits")
    if not rate or not num_channels:
        raise broken(f"has {num_channels} channels at {rate} Hz")
    if len(body) < bits // 8 * num_channels:
        raise broken("has no samples")
    return WavFile(rate=rate, num_channels=num_channels, is_float=code == _FLOAT, sample_bytes=bits // 8, data=body)


def _chunks(content: memoryview) -> Iterator[tuple[bytes, memoryview, int]]:
    """Name, body and promised size of each. A chunk of unknown size is the last."""
    place = 12
    while place + 8 <= len(content):
        name, size = struct.unpack("<4sI", content[place : place + 8])
        length = len(content) if name == b"data" and size in _UNKNOWN_SIZES else size
        yield name, content[place + 8 : place + 8 + length], size
        place += 8 + length + length % 2
