"""Recognises the containers of sound and video that are read, by their first bytes.

FFmpeg knows hundreds, some of which name other files to open. It is told which one of these few to read, and guesses
nothing.
"""

from facet.media.limits import refused
from facet.media.signatures import recognize
from facet.media.sound_wav import is_wav

_KNOWN_SOUND = "WAV, MP3, FLAC, Ogg, AAC, M4A, MP4, WebM, Matroska"
_KNOWN_VIDEO = "MP4, MOV, WebM, Matroska"
_MP4, _MATROSKA = "mov", "matroska"  # FFmpeg's names of demuxers, these and those below


def sound_container(data: bytes, where: str) -> str:
    """The demuxer of a file that may hold sound."""
    found = _find(data)
    if found is None:
        raise refused(
            f"{where} is {recognize(data) or 'of an unknown type'}, no sound that is read. Known: {_KNOWN_SOUND}."
        )
    return found


def video_container(data: bytes, where: str) -> str:
    """The demuxer of a file that may hold a video."""
    found = _find(data)
    if found not in (_MP4, _MATROSKA):
        raise refused(
            f"{where} is {recognize(data) or 'of an unknown type'}, no video that is read. Known: {_KNOWN_VIDEO}."
        )
    return found


def _find(data: bytes) -> str | None:
    start = data[:12]
    if is_wav(data):
        return "wav"
    if start[4:8] == b"ftyp":
        return _MP4
    if start.startswith(b"\x1a\x45\xdf\xa3"):
        return _MATROSKA
    if start.startswith(b"fLaC"):
        return "flac"
    if start.startswith(b"OggS"):
        return "ogg"
    if start.startswith(b"ID3"):
        return "mp3"
    if len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0:  # eleven ones begin a frame
        return "aac" if start[1] & 0x06 == 0 else "mp3"  # these two bits name the layer, and AAC has none
    return None
