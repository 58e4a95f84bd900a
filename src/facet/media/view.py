"""Draws prepared pictures as a model sees them: the pixels it gets, with a grid of its soft tokens."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from facet.media.spec import PatchPictures, SquarePictures
from facet.prepared_media import PreparedMedia

_LINE, _SHADOW, _GAP = (255, 255, 255), (0, 0, 0), 16


def draw_view(media: Sequence[PreparedMedia], spec: PatchPictures | SquarePictures) -> Image.Image:
    """A picture, and its crops to the right of it."""
    tiles = [_with_grid(rebuild(one, spec), *grid_of(one, spec)) for one in media]
    width = sum(tile.width for tile in tiles) + _GAP * (len(tiles) - 1)
    canvas = Image.new("RGB", (width, max(tile.height for tile in tiles)))
    left = 0
    for tile in tiles:
        canvas.paste(tile, (left, 0))
        left += tile.width + _GAP
    return canvas


def rebuild(media: PreparedMedia, spec: PatchPictures | SquarePictures) -> Image.Image:
    """The picture in the arrays that a tower gets."""
    if isinstance(spec, SquarePictures):
        return Image.fromarray(np.ascontiguousarray(media.arrays["pixels"].numpy().transpose(1, 2, 0)))
    positions, side = media.arrays["positions"].numpy(), spec.patch_size
    across, down = (int(count) + 1 for count in positions.max(axis=0))
    patches = media.arrays["patches"].numpy().reshape(down, across, side, side, 3)
    return Image.fromarray(patches.transpose(0, 2, 1, 3, 4).reshape(down * side, across * side, 3))


def grid_of(media: PreparedMedia, spec: PatchPictures | SquarePictures) -> tuple[int, int]:
    """The rows and columns of soft tokens."""
    if isinstance(spec, SquarePictures):
        side = math.isqrt(media.num_tokens)
        return side, side
    width = int(media.arrays["positions"].numpy()[:, 0].max()) + 1
    columns = width * spec.patch_size // spec.token_size
    return media.num_tokens // columns, columns


def _with_grid(image: Image.Image, rows: int, columns: int) -> Image.Image:
    image = image.copy()
    draw = ImageDraw.Draw(image)
    for offset, colour in ((1, _SHADOW), (0, _LINE)):  # a dark line beside a light one shows on any picture
        for row in range(1, rows):
            y = row * image.height // rows + offset
            draw.line([(0, y), (image.width, y)], fill=colour)
        for column in range(1, columns):
            x = column * image.width // columns + offset
            draw.line([(x, 0), (x, image.height)], fill=colour)
    return image
