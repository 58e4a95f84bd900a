"""Files that a server should survive: broken, cut short, enormous, of the wrong kind, or two kinds at once.

Each case is a name, the bytes, and what has to come of it: a refusal, a picture, or either.
"""

import io
import itertools
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Literal

from PIL import Image

Outcome = Literal["refused", "opened", "either"]
Case = tuple[str, bytes, Outcome]

_SAVED_AS = {"png": "PNG", "jpeg": "JPEG", "gif": "GIF", "webp": "WEBP", "bmp": "BMP"}


def good_files() -> dict[str, bytes]:
    """A small picture with some detail in every format that is read."""
    image = Image.linear_gradient("L").resize((61, 43)).convert("RGB")
    image.putdata([(r, (r * i) % 256, i % 256) for i, (r, _, _) in enumerate(image.get_flattened_data())])
    files = {}
    for name, saved_as in _SAVED_AS.items():
        buffer = io.BytesIO()
        image.save(buffer, saved_as)
        files[name] = buffer.getvalue()
    buffer = io.BytesIO()
    image.save(buffer, "GIF", save_all=True, append_images=[image.rotate(90), image.rotate(180)])
    return {**files, "animated": buffer.getvalue()}


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


def bomb_png(width: int, height: int) -> bytes:
    """Honest and tiny: all its rows are zeros, a thousandth of their size."""
    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(packer.compress(row) for _ in range(min(height, 64))) + packer.flush()
    return png(width, height, png_chunk(b"IDAT", data))


def cut_short(files: dict[str, bytes]) -> Iterator[Case]:
    for (name, data), share in itertools.product(files.items(), range(0, 100, 6)):
        # The first picture of an animation is whole before the file is; a GIF may lack its last bytes.
        outcome: Outcome = "refused" if share <= 25 else "either"
        yield f"{name} cut at {share} %", data[: len(data) * share // 100], outcome


def changed(files: dict[str, bytes]) -> Iterator[Case]:
    chance = random.Random(7)
    for name, data in files.items():
        for index in range(16):
            broken = bytearray(data)
            for _ in range(chance.choice((1, 4, 32))):
                broken[chance.randrange(4, len(broken))] = chance.randrange(256)
            yield f"{name} changed {index}", bytes(broken), "either"


def mixed(files: dict[str, bytes]) -> Iterator[Case]:
    """The beginning of one format and the rest of another; a whole file behind another; scripts and archives behind."""
    for (name, data), (other, its_data) in itertools.permutations(files.items(), 2):
        yield f"{name} with the body of {other}", data[:12] + its_data[12:], "either"
    for name, data in files.items():
        yield f"{name} and a ZIP", data + b"PK\x03\x04" + bytes(64), "opened"
        yield f"{name} and a script", data + b"<script>alert(1)</script>", "opened"
        yield f"{name} behind a PDF's head", b"%PDF-1.7\n" + data, "refused"
        yield f"{name} behind HTML", b"<html><!--" + data, "refused"
        yield f"{name} behind a zero", b"\0" + data, "refused"


def of_other_kinds() -> Iterator[Case]:
    heads = {
        "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        "SVG with a prologue": b"<?xml version='1.0'?>\n<!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><svg/>",
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
        "binary EPS": b"\xc5\xd0\xd3\xc6" + bytes(40),
        "PDF": b"%PDF-1.7\n1 0 obj",
        "TIFF": b"II*\0\x08\0\0\0",
        "big TIFF": b"MM\0+\0\x08\0\0",
        "PSD": b"8BPS\0\1",
        "ICO": b"\0\0\1\0\1\0",
        "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n",
        "JPEG XL": b"\xff\x0a\xfa\x7f",
        "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0",
        "AVIF": b"\0\0\0\x1cftypavif\0\0\0\0",
        "MP4": b"\0\0\0\x18ftypisom\0\0\2\0",
        "WAV": b"RIFF\x24\0\0\0WAVEfmt ",
        "AVI": b"RIFF\x24\0\0\0AVI LIST",
        "Ogg": b"OggS\0\2",
        "MP3": b"ID3\3\0\0",
        "WebM": b"\x1a\x45\xdf\xa3",
        "playlist": b"#EXTM3U\nfile:///etc/passwd",
        "concat list": b"ffconcat version 1.0\nfile /etc/passwd",
        "ZIP": b"PK\x03\x04",
        "gzip": b"\x1f\x8b\x08",
        "ELF": b"\x7fELF\2\1\1",
        "text": b"a picture, I promise",
        "JSON": b'{"image": true}',
        "base64 of a PNG": b"iVBORw0KGgoAAAANSUhEUg",
        "PPM": b"P6 4 4 255 " + bytes(48),
        "PCX": b"\x0a\x05\x01\x08" + bytes(124),
        "SGI": b"\x01\xda\x01\x01",
        "XBM": b"#define x_width 8\n#define x_height 8\nstatic char x_bits[] = {0};",
        "ICNS": b"icns\0\0\1\0",
        "DDS": b"DDS \x7c\0\0\0",
        "FITS": b"SIMPLE  =                    T",
        "empty": b"",
        "one byte": b"\x89",
        "nothing but zeros": bytes(1000),
    }
    for name, data in heads.items():
        yield name, data, "refused"
    for name, data in heads.items():
        yield f"{name}, long", data + bytes(range(256)) * 8, "refused"


def enormous() -> Iterator[Case]:
    for width, height in ((60_000, 60_000), (2**31 - 1, 2**31 - 1), (100_000, 1), (1, 60_000), (40_000, 40_000)):
        yield f"PNG that says {width} x {height}", bomb_png(width if width < 2**20 else 1, height), "refused"
        yield f"PNG of {width} x {height} without pixels", png(width, height), "refused"
        yield f"BMP of {width} x {height}", _bmp(width, height), "refused"
        if max(width, height) < 65_536:
            size = struct.pack("<HH", width, height)
            yield f"GIF of {width} x {height}", b"GIF89a" + size + b"\x80\0\0" + bytes(6) + b";", "refused"
            start_of_frame = b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\3\1\x11\0\2\x11\0\3\x11\0"
            yield f"JPEG of {width} x {height}", b"\xff\xd8" + start_of_frame + b"\xff\xd9", "refused"
    yield "PNG of 0 x 0", png(0, 0), "refused"
    yield "PNG of 0 x 5", png(0, 5), "refused"
    yield "PNG without pixels", png(5, 5), "refused"
    yield "PNG of an unknown depth", png(5, 5, depth=77), "refused"
    yield "PNG of an unknown colour type", png(5, 5, colour=77), "refused"
    pixels, packed = png_chunk(b"IDAT", zlib.compress(bytes(5 * 16))), zlib.compress(bytes(100 << 20), 9)
    yield "PNG of 5 x 5", png(5, 5, pixels), "opened"
    yield "PNG whose comment unpacks to 100 MiB", png(5, 5, png_chunk(b"zTXt", b"a\0\0" + packed), pixels), "refused"
    yield "PNG whose profile unpacks to 100 MiB", png(5, 5, png_chunk(b"iCCP", b"a\0\0" + packed), pixels), "refused"
    many = b"".join(png_chunk(b"tEXt", b"k%d\0v" % index) for index in range(20_000))
    yield "PNG with 20,000 comments", png(5, 5, many, pixels), "opened"
    yield "PNG with a chunk of 4 GiB", b"\x89PNG\r\n\x1a\n" + b"\xff\xff\xff\xffIDAT", "refused"


def exif_trouble(files: dict[str, bytes]) -> Iterator[Case]:
    """Broken EXIF data are no reason to refuse a photo."""
    jpeg = files["jpeg"]
    for name, block in {
        "garbage": b"Exif\0\0" + bytes(range(60)),
        "a circle": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\x08\0\0\0",
        "an unknown orientation": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x63\0\0\0\0\0\0\0",
        "an offset far outside": b"Exif\0\0II*\0\xff\xff\xff\x7f",
        "cut short": b"Exif\0\0II*\0",
        "nothing": b"Exif\0\0",
    }.items():
        segment = b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block
        yield f"JPEG whose EXIF data are {name}", jpeg[:2] + segment + jpeg[2:], "opened"


def random_bodies() -> Iterator[Case]:
    chance = random.Random(11)
    heads = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"RIFF\xff\xff\0\0WEBPVP8 ")
    for head, index in itertools.product(heads, range(8)):
        yield f"{head[:4]!r} and noise {index}", head + chance.randbytes(chance.choice((1, 40, 3000))), "refused"


def _bmp(width: int, height: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


def cases() -> list[Case]:
    files = good_files()
    return [
        *cut_short(files),
        *changed(files),
        *mixed(files),
        *of_other_kinds(),
        *enormous(),
        *exif_trouble(files),
        *random_bodies(),
    ]
