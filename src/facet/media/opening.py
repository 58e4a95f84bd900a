"""Opens a picture: checks what kind of file it is and how large before it is decoded, and returns its RGB pixels.

Files come from strangers. Only the formats listed here are decoded, told apart by their first bytes and never by a name
or a declared type. As in the reference, a photo is turned as its EXIF data say, an animation is its first picture, and
transparency is dropped, not blended.
"""

import contextlib
import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from facet.errors import RequestError
from facet.media.limits import MediaLimits, refused
from facet.media.signatures import PICTURE_FORMATS, recognize


def open_picture(data: bytes, limits: MediaLimits, where: str = "The picture") -> Image.Image:
    """The picture in `data`, upright and in RGB. `where` names it in error messages."""
    check_size(data, limits, where)
    found = recognize(data)
    if found is None or found not in PICTURE_FORMATS:
        kind = "is in no format that is known here" if found is None else f"is {found}"
        raise refused(f"{where} {kind}. Pictures may be {', '.join(PICTURE_FORMATS.values())}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own limit is above ours; odd palettes are no news to a client
        return _decoded(data, found, limits, where)


def check_size(data: bytes, limits: MediaLimits, where: str) -> None:
    if not data:
        raise refused(f"{where} is empty (0 bytes). Send the file's contents.")
    if len(data) > limits.max_bytes:
        raise refused(
            f"{where} has {len(data):,} bytes, but at most {limits.max_bytes:,} are allowed. Send a smaller file."
        )


def _decoded(data: bytes, found: str, limits: MediaLimits, where: str) -> Image.Image:
    name = PICTURE_FORMATS[found]
    try:
        with Image.open(io.BytesIO(data), formats=[found]) as image:
            _check_dimensions(image, limits, where)
            image.load()
            return upright_rgb(image)
    except RequestError:
        raise
    except Image.DecompressionBombError:
        raise refused(
            f"{where} has too many pixels; at most {limits.max_pixels:,} are allowed. Send a smaller picture."
        ) from None
    except UnidentifiedImageError:
        raise refused(f"{where} begins like a {name} file but is none. Send the file as it was saved.") from None
    except MemoryError:
        raise refused(f"{where} needs more memory than a picture may take. Send a smaller picture.") from None
    except Exception as error:
        # Decoders raise errors of many kinds over broken files: OSError, SyntaxError, struct.error, EOFError, ...
        raise refused(
            f"{where} is a {name} file that is cut short or broken ({_short(error)}). Send the whole file."
        ) from None


def _check_dimensions(image: Image.Image, limits: MediaLimits, where: str) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise refused(f"{where} has {width} x {height} pixels. Send at least one.")
    if max(width, height) > limits.max_side:
        raise refused(
            f"{where} has {width} x {height} pixels, but a side may have at most {limits.max_side:,}. Make it smaller."
        )
    if width * height > limits.max_pixels:
        raise refused(
            f"{where} has {width} x {height} = {width * height:,} pixels, but at most {limits.max_pixels:,} are "
            "allowed. Make it smaller."
        )


def upright_rgb(image: Image.Image) -> Image.Image:
    """A loaded picture as models get it. It may be turned in place: large ones are not copied for nothing."""
    # Broken EXIF data fail in a dozen ways; the pixels are there all the same.
    with contextlib.suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16"):
        # 16 bits of grey. Pillow's conversion would clip them to white; the upper eight are the picture.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
