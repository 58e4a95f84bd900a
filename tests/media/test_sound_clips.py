"""Sound in clips: all of it, none too long, and cut where it is quiet."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facet.media.jobs import prepare_sound_clips, prepare_sound_file
from facet.media.limits import MediaLimits
from facet.media.sound_clips import cut
from facet.media.sound_waveform import Waveform
from tests.media.sounds import tones, wav
from tests.prompts.media_models import make_gemma4

RATE = 8_000


@given(
    seconds=st.floats(0.01, 130),
    longest=st.sampled_from([1.0, 30.0]),
    rate=st.sampled_from([50, 8_000]),
    seed=st.integers(0, 9),
)
@settings(max_examples=30, deadline=None)
def test_clips_are_the_whole(seconds: float, longest: float, rate: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(size=max(1, round(seconds * rate))).astype(np.float32)
    clips = list(cut(Waveform(rate, samples), longest))
    assert np.array_equal(np.concatenate([clip.samples for clip, _ in clips]), samples)
    lengths = [len(clip.samples) / rate for clip, _ in clips]
    assert max(lengths) <= longest
    assert len(clips) == 1 or min(lengths) >= min(5.0, longest / 4) - 0.1
    assert [end for _, end in clips] == pytest.approx(np.cumsum(lengths))


def test_clips_end_in_pauses() -> None:
    """And a model that hears thirty seconds gets no more of them."""
    sounds = make_gemma4().media.sounds
    assert sounds is not None
    spec = replace(sounds, max_samples=480_000)
    samples = (tones(64, RATE) * 32_000).astype(np.int16)
    for pause in (28, 55):
        samples[pause * RATE : pause * RATE + RATE // 2] = 0
    clips = list(prepare_sound_clips(wav(samples, RATE), spec, 30.0, MediaLimits(), "it"))
    assert [clip.timestamp for clip in clips] == pytest.approx([28.25, 55.25, 64], abs=0.02)
    assert len({clip.content_key for clip in clips}) == 3
    short = wav(samples[:RATE], RATE)
    (whole,) = prepare_sound_clips(short, spec, 30.0, MediaLimits(), "it")
    assert replace(whole, timestamp=None) == prepare_sound_file(short, spec, MediaLimits(), "it")[0]
