"""Sound and video that is broken, cut short, far too large or something else: errors in words, and no others."""

import importlib.util
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from facet.errors import RequestError
from facet.media.jobs import prepare_sound_file, prepare_video_file
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.spec import Sounds, Videos
from facet.media.workers import MediaWorkers
from facet.prepared_media import PreparedMedia
from tests.media.families import media_spec
from tests.media.sounds import SOUND_FILES, encoded_sound, encoded_video, tones, wav

LIMITS = MediaLimits()


def sounds(family: str = "gemma4_e") -> Sounds:
    spec = media_spec(family).sounds
    assert spec is not None
    return spec


def videos() -> Videos:
    spec = media_spec("gemma4_e").videos
    assert spec is not None
    return spec


def as_sound(data: bytes, limits: MediaLimits = LIMITS) -> list[PreparedMedia]:
    return list(prepare_sound_file(data, sounds(), limits, "messages[0]"))


def as_video(data: bytes, limits: MediaLimits = LIMITS) -> list[PreparedMedia]:
    return list(prepare_video_file(data, videos(), MediaOptions(num_frames=3), limits, "messages[0]"))


def harmed(data: bytes, seed: int) -> Iterator[bytes]:
    """Cut short, with bytes changed, taken out and put in, and behind something else."""
    chance = random.Random(seed)
    for _ in range(8):
        yield data[: chance.randrange(1, len(data))]
        yield data[: chance.randrange(1, min(len(data), 200))]
        changed = bytearray(data)
        for _ in range(chance.choice((1, 5, 50))):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        yield bytes(changed)
        start = bytearray(data)
        for _ in range(5):  # headers are where sizes are
            start[chance.randrange(min(len(data), 100))] = chance.choice((0, 1, 0x7F, 0xFF))
        yield bytes(start)
        place = chance.randrange(len(data))
        yield data[:place] + chance.randbytes(100) + data[place:]
        yield data[:place] + data[place + chance.randrange(1, 1000) :]
    yield b"\xff\xd8\xff" + data
    yield data + data


def refusals(files: Iterator[bytes], *readers: Any) -> list[RequestError]:
    """What is said of those that are refused, when each is read in every way. Any other error comes through."""
    found = []
    for data in files:
        for read in readers:
            try:
                read(data)
            except RequestError as error:
                found.append(error)
    assert all(str(error).startswith("messages[0] ") and error.field == "messages" for error in found)
    return found


@pytest.mark.parametrize("name", [*SOUND_FILES, "wav"])
def test_harmed_sounds(name: str) -> None:
    if name == "wav":
        data = wav((tones(0.3, 16_000, 2) * 32_767).astype(np.int16), 16_000)
    else:
        data = encoded_sound(*SOUND_FILES[name], seconds=0.3, rate=8_000 if "law" in name else 48_000)
    assert as_sound(data)
    assert len(refusals(harmed(data, seed=len(name)), as_sound, as_video)) > 50


@pytest.mark.parametrize(("container", "codec"), [("mp4", "libx264"), ("webm", "libvpx-vp9"), ("mov", "mpeg4")])
def test_harmed_videos(container: str, codec: str) -> None:
    data = encoded_video(9, 10, container=container, codec=codec)
    assert as_video(data)
    assert len(refusals(harmed(data, seed=len(codec)), as_video, as_sound)) > 50


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\0" * 64, "is of an unknown type, no sound that is read. Known: WAV, MP3"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is SVG, no sound"),
        (b"%PDF-1.7\n", "is a PDF, no sound"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\nfile:///etc/passwd\n", "is a playlist, no sound"),
        (b"ffconcat version 1.0\nfile '/etc/passwd'\n", "is of an unknown type, no sound"),
        (b"concat:/etc/passwd|/etc/passwd", "is of an unknown type, no sound"),
        (b"http://169.254.169.254/latest/meta-data/", "is of an unknown type, no sound"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "is PNG, no sound"),
        (b"ID3" + b"\0" * 200, "is broken or cut short"),
        (b"OggS" + b"\0" * 200, "is broken or cut short"),
        (b"\0\0\0\x18ftypmp42" + b"\0" * 200, "is broken or cut short"),
        (b"RIFF\0\0\0\0WAVE", "is a WAV file that has no format"),
        (
            b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0",
            "is a WAV file that has no samples",
        ),
    ],
)
def test_what_is_no_sound(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        as_sound(data)


def header(rate: int = 16_000, channels: int = 1, bits: int = 16, code: int = 1) -> bytes:
    good = wav(np.zeros((1_000, 1), np.int16), 16_000)
    return (
        good[:20]
        + code.to_bytes(2, "little")
        + channels.to_bytes(2, "little")
        + rate.to_bytes(4, "little")
        + good[28:34]
        + bits.to_bytes(2, "little")
        + good[36:]
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (header(rate=0), "has 1 channels at 0 Hz"),
        (header(channels=0), "has 0 channels at 16000 Hz"),
        (header(bits=12), "has samples of 12 bits"),
        (header(rate=2**32 - 1), "has 4,294,967,295 samples a second, but at most 192,000 are allowed"),
        (header(channels=65_535), "has no samples"),
        (header(channels=500), "has 500 channels, but at most 32 are allowed"),
        (wav(np.full((4_000, 1), np.nan, np.float32), 16_000, code=3), "has samples .* that are no numbers"),
        (wav(np.full((4_000, 1), 1e30, np.float32), 16_000, code=3), "has samples beyond 64"),
        (wav(np.zeros((100, 1), np.int16), 16_000, data_size=500), "promises 500 bytes of samples but has 200"),
        (wav(np.zeros((31 * 8_000, 1), np.uint8), 8_000), "is longer than the 30 seconds allowed"),
    ],
)
def test_wav_files_that_lie(data: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        as_sound(data)


def test_limits_of_decoded_sound() -> None:
    data = encoded_sound("flac", "flac", seconds=3, rate=48_000)
    for limits, message in (
        (replace(LIMITS, max_bytes=1_000), "bytes, but at most 1,000 are allowed"),
        (replace(LIMITS, max_sound_seconds=2), "is longer than the 2 seconds allowed"),
        (replace(LIMITS, max_sampling_rate=44_100), "has 48,000 samples a second, but at most 44,100"),
        (replace(LIMITS, max_channels=1), "has 2 channels, but at most 1"),
    ):
        with pytest.raises(RequestError, match=message):
            as_sound(data, limits)
    # Without a length in its header, sound is counted while it is decoded.
    with pytest.raises(RequestError, match="is longer than the 2 seconds allowed"):
        as_sound(encoded_sound("adts", "aac", seconds=3), replace(LIMITS, max_sound_seconds=2))


def test_a_bomb_of_silence_is_refused_before_it_is_decoded() -> None:
    """Ten minutes in a few kilobytes."""
    data = encoded_sound("flac", "flac", seconds=1)
    place = data.index(b"fLaC") + 8 + 13  # the number of samples: 36 bits that end the first half of the block
    bomb = data[:place] + b"\xff" * 5 + data[place + 5 :]
    with pytest.raises(RequestError, match="is longer than the 30 seconds allowed"):
        as_sound(bomb)


def test_without_the_extra_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "av" else find(name, *more))
    assert as_sound(wav(tones(0.1, 16_000), 16_000, code=3))
    for read, data in ((as_sound, b"fLaC" + b"\0" * 99), (as_video, b"\0\0\0\x18ftypmp42")):
        with pytest.raises(RequestError, match=r"messages\[0\] needs PyAV.* pip install 'facet-llm\[media\]'"):
            read(data)


def test_in_a_process_of_its_own() -> None:
    workers = MediaWorkers(1, max_seconds=60)
    video = encoded_video(9, 10)
    try:
        arguments: tuple[Any, ...] = (video, videos(), MediaOptions(num_frames=3), LIMITS, "it")
        found = workers.run("facet.media.jobs.prepare_video_file", *arguments, where="it")
        assert list(found) == list(prepare_video_file(*arguments))
        with pytest.raises(RequestError, match="it is broken or cut short"):
            workers.run("facet.media.jobs.prepare_sound_file", b"OggS", sounds(), LIMITS, "it", where="it")
    finally:
        workers.close()


def test_decoding_ends_at_its_time_limit() -> None:
    workers = MediaWorkers(1, max_seconds=0.01)
    try:
        with pytest.raises(RequestError, match=r"it took longer than 0\.01 seconds to decode"):
            workers.run("facet.media.jobs.prepare_sound_file", b"OggS", sounds(), LIMITS, "it", where="it")
    finally:
        workers.close()
