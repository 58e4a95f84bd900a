"""Jobs for the processes that decode: from the bytes of a file to prepared media."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from facet.media.decoder import decode_frames, decode_sound
from facet.media.decoder_containers import sound_container, video_container
from facet.media.limits import MediaLimits
from facet.media.opening import check_size, open_picture
from facet.media.options import MediaOptions
from facet.media.pictures import prepare_picture
from facet.media.sound import prepare_sound
from facet.media.sound_clips import cut
from facet.media.sound_wav import is_wav, read_wav
from facet.media.sound_waveform import Waveform, check_sound, limits_of_sounds
from facet.media.spec import PatchPictures, Sounds, SquarePictures, Videos
from facet.media.video import frames_wanted, prepare_frame
from facet.prepared_media import PreparedMedia, content_key


def prepare_picture_file(
    data: bytes, spec: PatchPictures | SquarePictures, options: MediaOptions, limits: MediaLimits, where: str
) -> tuple[PreparedMedia, ...]:
    return prepare_picture(open_picture(data, limits, where), spec, options, data)


def prepare_sound_file(data: bytes, spec: Sounds, limits: MediaLimits, where: str) -> tuple[PreparedMedia, ...]:
    check_size(data, limits, where)
    waveform = _open_sound(data, limits_of_sounds(spec, limits), where)
    return (prepare_sound(waveform, spec, content_key(data, "audio", spec), where),)


def prepare_sound_clips(
    data: bytes, spec: Sounds, max_seconds: float, limits: MediaLimits, where: str
) -> Iterator[PreparedMedia]:
    """One value for each clip of at most `max_seconds`; sound that is no longer is what it is in a conversation."""
    check_size(data, limits, where)
    waveform = _open_sound(data, limits, where)
    content = hashlib.sha256(data).digest()  # once, since every clip's key is made of it
    end = 0.0
    for clip, next_end in cut(waveform, max_seconds):
        is_whole = len(clip.samples) == len(waveform.samples)
        key = content_key(data, "audio", spec) if is_whole else content_key(content, "audio", spec, end, next_end)
        yield replace(prepare_sound(clip, spec, key, where), timestamp=next_end)
        end = next_end


def prepare_video_file(
    data: bytes, spec: Videos, options: MediaOptions, limits: MediaLimits, where: str
) -> Iterator[PreparedMedia]:
    """One value for each frame."""
    check_size(data, limits, where)
    content = hashlib.sha256(data).digest()  # once, since every frame's key is made of it
    for frame in decode_frames(data, video_container(data, where), frames_wanted(spec, options), limits, where):
        yield prepare_frame(frame, content, spec, options)


def _open_sound(data: bytes, limits: MediaLimits, where: str) -> Waveform:
    """PCM in a WAV file needs no decoder."""
    wav = read_wav(data, where) if is_wav(data) else None
    if wav is None:
        return decode_sound(data, sound_container(data, where), limits, where)
    check_sound(wav.rate, wav.num_channels, wav.num_samples / wav.rate, limits, where)
    return wav.waveform()
