"""Sound is prepared as the processors of transformers do it, from waveforms and from files of many kinds."""

import importlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from facet.errors import RequestError
from facet.media.jobs import prepare_sound_file
from facet.media.limits import MediaLimits
from facet.media.sound import prepare_sound
from facet.media.sound_resample import resample
from facet.media.sound_waveform import Waveform
from facet.media.spec import Sounds
from facet.prepared_media import PreparedMedia
from tests.media.families import media_spec
from tests.media.sounds import SOUND_FILES, encoded_sound, tones, wav

LENGTHS = (161, 640, 641, 880, 1000, 4800, 16_000, 20_800, 32_080)


def sounds(family: str) -> Sounds:
    spec = media_spec(family).sounds
    assert spec is not None
    return spec


def prepared(samples: NDArray[np.float32], family: str, rate: int = 16_000) -> PreparedMedia:
    return prepare_sound(Waveform(rate, samples), sounds(family), "key", "it")


def features(prepared: PreparedMedia) -> NDArray[np.float32]:
    return prepared.arrays["features"].numpy()


def extractor(name: str) -> Any:
    package, _, _ = name.partition(".")
    return getattr(
        importlib.import_module(f"transformers.models.{package}.feature_extraction_{package}"), name[len(package) + 1 :]
    )()


@pytest.mark.parametrize("length", LENGTHS)
def test_log_mel_of_gemma_4(length: int) -> None:
    samples = tones(length / 16_000, 16_000, seed=length)[:, 0]
    found = extractor("gemma4.Gemma4AudioFeatureExtractor")([samples], return_tensors="np")
    mask = found["input_features_mask"][0]
    ours = prepared(samples, "gemma4_e")
    assert ours.kind == "audio"
    assert features(ours).dtype == np.float32
    assert len(features(ours)) == mask.sum() == (length - 1) // 160
    assert ours.num_tokens == mask[::2][::2].sum()
    assert np.abs(features(ours) - found["input_features"][0][mask]).max() <= 1e-4


@pytest.mark.parametrize("length", [length for length in LENGTHS if length > 512])
def test_log_mel_of_gemma_3n(length: int) -> None:
    samples = tones(length / 16_000, 16_000, seed=length)[:, 0]
    found = extractor("gemma3n.Gemma3nAudioFeatureExtractor")([samples], return_tensors="np")
    assert found["input_features_mask"].all()
    ours = prepared(samples, "gemma3n")
    assert ours.num_tokens == 188
    assert features(ours).shape == found["input_features"][0].shape
    assert np.abs(features(ours) - found["input_features"][0]).max() <= 5e-4


@pytest.mark.parametrize("length", [1, *LENGTHS])
def test_raw_frames_of_the_12b(length: int) -> None:
    samples = tones(length / 16_000, 16_000, seed=length)[:, 0]
    found = extractor("gemma4_unified.Gemma4UnifiedAudioFeatureExtractor")([samples], return_tensors="np")
    ours = prepared(samples, "gemma4_12b")
    assert ours.num_tokens == len(features(ours)) == -(-length // 640)
    assert np.array_equal(features(ours), found["input_features"][0])


@pytest.mark.parametrize(
    ("num_samples", "num_tokens"), [(161, 1), (880, 2), (16_000, 25), (32_080, 50), (480_000, 750), (488_000, 750)]
)
def test_soft_tokens_of_gemma_4(num_samples: int, num_tokens: int) -> None:
    """Half a second too much is cut off."""
    assert prepared(np.zeros(num_samples, np.float32), "gemma4_e").num_tokens == num_tokens


@pytest.mark.parametrize(
    ("family", "num_samples"), [("gemma4_e", 160), ("gemma4_e", 1), ("gemma3n", 512), ("gemma3n", 0)]
)
def test_too_short(family: str, num_samples: int) -> None:
    with pytest.raises(RequestError, match=f"it has {num_samples} samples at 16000 Hz, too few"):
        prepared(np.zeros(num_samples, np.float32), family)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 12_345])
def test_resampling_is_that_of_ffmpeg(rate: int) -> None:
    import av

    samples = tones(0.4, rate, seed=rate)[:, 0]
    frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=16_000)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    theirs = np.concatenate([part.to_ndarray()[0] for part in parts])
    ours = resample(samples, rate, 16_000)
    assert len(ours) == -(-len(samples) * 16_000 // rate)
    assert len(theirs) <= len(ours) <= len(theirs) + 1
    assert np.abs(ours[: len(theirs)] - theirs).max() <= 1e-6


@pytest.mark.parametrize("num_samples", [0, 1, 2, 3, 50])
def test_resampling_very_little(num_samples: int) -> None:
    samples = np.full(num_samples, 0.5, np.float32)
    assert np.allclose(resample(samples, 8_000, 16_000), np.full(2 * num_samples, 0.5), atol=1e-3)
    assert resample(samples, 16_000, 16_000) is samples


def as_wav(samples: NDArray[np.float32], kind: str, rate: int) -> bytes:
    if kind == "8 bits":
        return wav(np.round(samples * 127 + 128).astype(np.uint8), rate)
    if kind == "24 bits":
        wide = np.round(samples * (2**23 - 1)).astype("<i4")
        three = np.ascontiguousarray(wide).view(np.uint8).reshape(*samples.shape, 4)[..., :3]
        body = wav(np.zeros((0, samples.shape[1]), np.int32), rate)
        return body[:34] + b"\x18\0" + body[36:-4] + three.size.to_bytes(4, "little") + three.tobytes()
    if kind in ("16 bits", "32 bits"):
        bits = int(kind[:2])
        return wav(np.round(samples.astype(float) * (2 ** (bits - 1) - 1)).astype(f"i{bits // 8}"), rate)
    return wav(samples.astype(kind), rate, code=3, extensible=kind == "float64")


@pytest.mark.parametrize("kind", ["8 bits", "16 bits", "24 bits", "32 bits", "float32", "float64"])
@pytest.mark.parametrize(("rate", "num_channels"), [(16_000, 1), (44_100, 2), (8_000, 3)])
def test_wav_files(kind: str, rate: int, num_channels: int) -> None:
    """Channels are averaged; what is left to tell apart is how samples are rounded."""
    samples = tones(0.3, rate, num_channels)
    (found,) = prepare_sound_file(as_wav(samples, kind, rate), sounds("gemma4_12b"), MediaLimits(), "it")
    expected = resample(samples.mean(axis=1, dtype=np.float32), rate, 16_000)
    tolerance = {"8 bits": 2**-6, "16 bits": 2**-14}.get(kind, 1e-6)
    assert np.abs(features(found).ravel()[: len(expected)] - expected).max() <= tolerance


@pytest.mark.parametrize("size", [0, 0xFFFF_FFFF])
def test_wav_files_of_unknown_length_are_read_to_their_end(size: int) -> None:
    samples = tones(0.1, 16_000)
    known, unknown = (
        prepare_sound_file(wav(samples, 16_000, code=3, data_size=given), sounds("gemma4_12b"), MediaLimits(), "it")[0]
        for given in (None, size)
    )
    assert known.arrays == unknown.arrays
    assert known.content_key != unknown.content_key


@pytest.mark.parametrize("name", SOUND_FILES)
def test_files_that_ffmpeg_reads(name: str) -> None:
    """What comes out is what went in: as loud, as long, and like it."""
    container, codec = SOUND_FILES[name]
    rate = 8_000 if "law" in name else 48_000
    data = encoded_sound(container, codec, rate=rate)
    (found,) = prepare_sound_file(data, sounds("gemma4_12b"), MediaLimits(), "it")
    samples = features(found).ravel()
    expected = resample(tones(0.8, rate, 2).mean(axis=1, dtype=np.float32), rate, 16_000)
    assert abs(len(samples) - len(expected)) < 2_000  # some encoders add silence before and behind
    alike = np.correlate(samples, expected[4_000:8_000], "valid").max() / np.square(expected[4_000:8_000]).sum()
    assert 0.95 < alike < 1.05


def test_sound_of_a_video_is_read() -> None:
    data = encoded_sound("mp4", "aac")
    (found,) = prepare_sound_file(data, sounds("gemma4_e"), MediaLimits(), "it")
    assert found.num_tokens in (20, 21)
