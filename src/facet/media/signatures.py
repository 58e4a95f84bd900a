"""Recognizes files by their first bytes, so that nothing is decoded because of a name or a declared type."""

from collections.abc import Callable

# Pillow's name of a format, and ours. Others that Pillow could read (EPS, TIFF, PSD, ...) run programs, nest formats
# or are never pictures for a chat.
PICTURE_FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "WEBP": "WebP", "GIF": "GIF", "BMP": "BMP"}

# Kinds of files that hold sound or video, in the words of `recognize`. What is in a container shows when it is opened.
SOUND_FILES = ("WAV sound", "MP3 sound", "an Ogg file", "a FLAC file", "an M4A file")
VIDEO_FILES = ("an MP4 or QuickTime file", "a Matroska or WebM file")

_STARTS: dict[str, tuple[bytes, ...]] = {
    "PNG": (b"\x89PNG\r\n\x1a\n",),
    "JPEG": (b"\xff\xd8\xff",),
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": (b"BM",),
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "a Photoshop file": (b"8BPS",),
    "EPS or PostScript": (b"%!", b"\xc5\xd0\xd3\xc6"),
    "a PDF": (b"%PDF-",),
    "a ZIP archive or an office document": (b"PK\x03\x04", b"PK\x05\x06"),
    "gzip": (b"\x1f\x8b",),
    "a Windows icon": (b"\0\0\1\0", b"\0\0\2\0"),
    "JPEG 2000": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "an Ogg file": (b"OggS",),
    "a FLAC file": (b"fLaC",),
    "a Matroska or WebM file": (b"\x1a\x45\xdf\xa3",),
    "MP3 sound": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
    "a playlist": (b"#EXTM3U",),
    "an ELF program": (b"\x7fELF",),
    "a Windows program": (b"MZ",),
}


def _is_svg_or_html(data: bytes) -> str | None:
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head.startswith(b"<"):
        return None
    return "SVG" if b"<svg" in head else "a web page or other XML"


def _is_riff(data: bytes) -> str | None:
    if not data.startswith((b"RIFF", b"RIFX")):
        return None
    return {b"WEBP": "WEBP", b"WAVE": "WAV sound", b"AVI ": "an AVI video"}.get(data[8:12], "a RIFF file")


def _is_iso_media(data: bytes) -> str | None:
    if data[4:8] != b"ftyp":
        return None
    brand = data[8:12]
    if brand in (b"avif", b"avis"):
        return "AVIF"
    if brand in (b"heic", b"heix", b"heif", b"hevc", b"mif1", b"msf1"):
        return "HEIC"
    return "an M4A file" if brand in (b"M4A ", b"M4B ") else "an MP4 or QuickTime file"


_LOOK: tuple[Callable[[bytes], str | None], ...] = (_is_riff, _is_iso_media, _is_svg_or_html)


def recognize(data: bytes) -> str | None:
    """A key of `PICTURE_FORMATS`, or what else this is in words; None: unknown."""
    for name, starts in _STARTS.items():
        if data.startswith(starts):
            return name
    return next((found for look in _LOOK if (found := look(data)) is not None), None)
