"""Prepares pictures as each family's reference does: the size, the resize filter, patches and crops.

Resizing is Pillow's, on bytes: it rounds to bytes between its two passes, and models were trained on what comes out.
"""

import math
from collections.abc import Iterator

import numpy as np
from PIL import Image

from facet.media.options import MediaOptions, choose_budget
from facet.media.spec import PanAndScan, PatchPictures, ResizeFilter, SquarePictures
from facet.media_span import MediaKind
from facet.prepared_media import MediaArray, PreparedMedia, content_key

_FILTERS: dict[ResizeFilter, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def prepare_picture(
    image: Image.Image,
    spec: PatchPictures | SquarePictures,
    options: MediaOptions,
    content: bytes,
) -> tuple[PreparedMedia, ...]:
    """One value for each span: the picture, and its crops where it has some. `content` is what its key is made of."""
    if isinstance(spec, PatchPictures):
        budget = choose_budget(spec, image.height, image.width, options)
        return (prepare_patches(image, spec, budget, content_key(content, "image", spec, budget)),)
    crops = list(_crops(image, spec.pan_and_scan, options))
    return tuple(
        _prepare_square(part, spec, content_key(content, "image", spec, len(crops), index))
        for index, part in enumerate([image, *crops])
    )


def prepare_patches(
    image: Image.Image,
    spec: PatchPictures,
    budget: int,
    key: str,
    *,
    kind: MediaKind = "image",
    timestamp: float | None = None,
) -> PreparedMedia:
    """A picture or a video's frame in patches, at most `budget` soft tokens."""
    rows, columns = token_grid(image.height, image.width, budget, spec.token_size)
    resized = resize_to_grid(image, rows, columns, spec)
    side = spec.patch_size
    down, across = resized.height // side, resized.width // side
    pixels = np.asarray(resized)
    patches = pixels.reshape(down, side, across, side, 3).transpose(0, 2, 1, 3, 4).reshape(down * across, -1)
    y, x = np.divmod(np.arange(down * across, dtype=np.int32), np.int32(across))
    return PreparedMedia(
        kind=kind,
        content_key=key,
        num_tokens=rows * columns,
        arrays={
            "patches": MediaArray.from_numpy(patches),
            "positions": MediaArray.from_numpy(np.stack([x, y], axis=1)),
        },
        attends_both_ways=spec.attends_both_ways,
        timestamp=timestamp,
    )


def resize_to_grid(image: Image.Image, rows: int, columns: int, spec: PatchPictures) -> Image.Image:
    return _resized(image, (columns * spec.token_size, rows * spec.token_size), spec.filter)


def token_grid(height: int, width: int, budget: int, token_size: int) -> tuple[int, int]:
    """Rows and columns of soft tokens: as many as the budget allows, in the picture's shape."""
    scale = math.sqrt(budget * token_size**2 / (height * width))
    rows, columns = math.floor(scale * height / token_size), math.floor(scale * width / token_size)
    if rows == 0:
        return 1, min(width // height, budget)
    if columns == 0:
        return min(height // width, budget), 1
    return rows, columns


def crop_boxes(width: int, height: int, rule: PanAndScan) -> list[tuple[int, int, int, int]]:
    """The crops shown besides a picture far from square, along its long side: left, top, right, bottom of each."""
    long, short = max(width, height), min(width, height)
    if long / short < rule.min_ratio:
        return []
    count = min(math.floor(long / short + 0.5), long // rule.min_crop_size)
    count = min(max(count, 2), rule.max_num_crops)
    step = math.ceil(long / count)
    if min(step, short) < rule.min_crop_size:
        return []
    ranges = [(start, min(start + step, long)) for start in range(0, step * count, step)]
    if width >= height:
        return [(start, 0, end, height) for start, end in ranges]
    return [(0, start, width, end) for start, end in ranges]


def _crops(image: Image.Image, rule: PanAndScan | None, options: MediaOptions) -> Iterator[Image.Image]:
    if rule is None:
        return
    if rule.enabled if options.pan_and_scan is None else options.pan_and_scan:
        for box in crop_boxes(image.width, image.height, rule):
            yield image.crop(box)


def _prepare_square(image: Image.Image, spec: SquarePictures, key: str) -> PreparedMedia:
    pixels = np.asarray(_resized(image, (spec.side, spec.side), spec.filter))
    return PreparedMedia(
        kind="image",
        content_key=key,
        num_tokens=spec.num_tokens,
        arrays={"pixels": MediaArray.from_numpy(pixels.transpose(2, 0, 1))},
        attends_both_ways=spec.attends_both_ways,
    )


def _resized(image: Image.Image, size: tuple[int, int], resize_filter: ResizeFilter) -> Image.Image:
    return image if image.size == size else image.resize(size, _FILTERS[resize_filter])
