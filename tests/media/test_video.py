"""Frames of a video: which ones, when, and how they look."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from facet.errors import RequestError
from facet.media.decoder import decode_frames
from facet.media.decoder_containers import video_container
from facet.media.jobs import prepare_video_file
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.spec import Videos
from facet.media.video import VideoFrame, sample_frames
from facet.prepared_media import PreparedMedia
from tests.media.families import media_spec
from tests.media.sounds import encoded_sound, encoded_video, shade

RATES = (Fraction(30_000, 1001), Fraction(24_000, 1001), 7, 12.5, 1, 60)


def frames_of(data: bytes, num_frames: int, limits: MediaLimits | None = None) -> list[VideoFrame]:
    return list(decode_frames(data, video_container(data, "it"), num_frames, limits or MediaLimits(), "it"))


def videos() -> Videos:
    spec = media_spec("gemma4_e").videos
    assert spec is not None
    return spec


def prepared(data: bytes, options: MediaOptions) -> list[PreparedMedia]:
    return list(prepare_video_file(data, videos(), options, MediaLimits(), "it"))


def number_of(frame: VideoFrame) -> int:
    """Which frame this is, by its shade."""
    top = float(frame.pixels[: frame.pixels.shape[0] // 4].mean())
    return min(range(40), key=lambda index: abs(shade(index) - top))


@pytest.mark.parametrize("num_frames", [1, 2, 8, 32])
@pytest.mark.parametrize("total", [32, 33, 40, 100, 999, 5_999])
def test_the_reference_chooses_the_same_frames(total: int, num_frames: int) -> None:
    assert sample_frames(total, num_frames) == torch.arange(0, total, total / num_frames).int().tolist()


def test_short_videos_are_taken_whole() -> None:
    assert sample_frames(5, 32) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rate", RATES)
def test_frames_and_times_at_odd_rates(rate: Fraction | float) -> None:
    total, wanted = 23, 6
    found = frames_of(encoded_video(total, rate), wanted)
    indices = [index * total // wanted for index in range(wanted)]
    assert [number_of(frame) for frame in found] == indices
    stored = float(Fraction(rate).limit_denominator(1001))
    assert [frame.timestamp for frame in found] == pytest.approx([index / stored for index in indices])


def test_frames_are_those_of_the_reference(tmp_path: Path) -> None:
    from transformers.video_utils import load_video

    data = encoded_video(40, Fraction(30_000, 1001))
    (tmp_path / "clip.mp4").write_bytes(data)
    chosen = torch.arange(0, 40, 40 / 7).int()[:7]
    theirs, metadata = load_video(
        str(tmp_path / "clip.mp4"), backend="pyav", sample_indices_fn=lambda metadata, **_: chosen
    )
    ours = frames_of(data, 7)
    assert np.array_equal(np.stack([frame.pixels for frame in ours]), theirs)
    assert [frame.timestamp for frame in ours] == pytest.approx([float(time) for time in metadata.timestamps])


@pytest.mark.parametrize(("container", "codec"), [("webm", "libvpx-vp9"), ("matroska", "libx264"), ("mov", "mpeg4")])
def test_other_containers(container: str, codec: str) -> None:
    """WebM and Matroska do not say how many frames they have."""
    found = frames_of(encoded_video(12, 10, container=container, codec=codec), 4)
    assert [number_of(frame) for frame in found] == [0, 3, 6, 9]
    assert [frame.timestamp for frame in found] == pytest.approx([0, 0.3, 0.6, 0.9])


@pytest.mark.parametrize(("degrees", "white"), [(0, "bottom"), (90, "left"), (180, "top"), (270, "right")])
def test_a_telephone_held_upright(degrees: int, white: str) -> None:
    """The matrix in the header of a track turns its pictures, clockwise."""
    data = turned(encoded_video(3, 10, size=(64, 48)), degrees)
    pixels = frames_of(data, 1)[0].pixels
    assert pixels.shape == ((48, 64, 3) if degrees % 180 == 0 else (64, 48, 3))
    edges = {"top": pixels[:8], "bottom": pixels[-8:], "left": pixels[:, :8], "right": pixels[:, -8:]}
    assert max(edges, key=lambda name: float(edges[name].mean())) == white


def turned(data: bytes, degrees: int) -> bytes:
    """The same file with another matrix, of nine numbers of 32 bits."""
    matrices = {
        0: (1, 0, 0, 0, 1, 0, 0, 0, 0x4000),
        90: (0, 1, 0, -1, 0, 0, 0, 0, 0x4000),
        180: (-1, 0, 0, 0, -1, 0, 0, 0, 0x4000),
        270: (0, -1, 0, 1, 0, 0, 0, 0, 0x4000),
    }
    packed = {angle: np.array(matrix, ">i4") * 0x10000 for angle, matrix in matrices.items()}
    place = data.index(packed[0].astype(">i4").tobytes(), data.index(b"tkhd"))
    return data[:place] + packed[degrees].astype(">i4").tobytes() + data[place + 36 :]


def test_every_frame_is_prepared_with_its_time() -> None:
    data = encoded_video(10, 5, size=(120, 80))
    found = prepared(data, MediaOptions(num_frames=3))
    assert [item.timestamp for item in found] == [0.0, 0.6, 1.2]
    assert {item.kind for item in found} == {"video"}
    assert len({item.content_key for item in found}) == 3
    assert {item.num_tokens for item in found} == {6 * 10}
    larger = prepared(data, MediaOptions(num_frames=2, max_soft_tokens=140))
    assert {item.num_tokens for item in larger} == {9 * 14}
    assert larger[0].content_key != found[0].content_key
    assert len(prepared(data, MediaOptions())) == 10


def test_what_is_no_video_is_refused() -> None:
    for data, message in (
        (encoded_sound("mp4", "aac"), "it holds no video"),
        (encoded_sound("flac", "flac"), "it is a FLAC file, no video that is read. Known: MP4"),
        (b"#EXTM3U\nhttp://example.com/a.mp4\n", "it is a playlist, no video that is read"),
        (encoded_video(3, 5, container="avi"), "it is an AVI video, no video that is read"),
        (encoded_video(3, 5, codec="ffv1", container="matroska"), "it is encoded as ffv1, which is not read"),
    ):
        with pytest.raises(RequestError, match=message):
            frames_of(data, 2)


def test_limits() -> None:
    data = encoded_video(20, 5)
    for limits, message in (
        (MediaLimits(max_pixels=64 * 48 - 1), "it has 64 x 48 pixels, but at most 3,071"),
        (MediaLimits(max_side=63), "it has 64 x 48 pixels"),
        (MediaLimits(max_frames=19), "it has more than 19 pictures"),
    ):
        with pytest.raises(RequestError, match=message):
            frames_of(data, 2, limits)
    webm = encoded_video(20, 5, container="webm", codec="libvpx-vp9")
    with pytest.raises(RequestError, match="it has more than 19 pictures"):
        frames_of(webm, 2, MediaLimits(max_frames=19))


def test_a_video_that_is_cut_short(tmp_path: Path) -> None:
    data = encoded_video(40, 10, path=tmp_path / "clip.mp4")
    assert len(frames_of(data, 4)) == 4
    with pytest.raises(RequestError, match=r"it has \d+ of 40 pictures: it is broken or cut short"):
        frames_of(data[: len(data) * 2 // 3], 4)
