"""Pictures against transformers: `pictures/` holds files, and what its processors make of them as hashes of bytes."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from facet.media.limits import MediaLimits
from facet.media.opening import open_picture
from facet.media.options import MediaOptions, choose_budget
from facet.media.pictures import crop_boxes, prepare_picture, token_grid
from facet.media.spec import BUDGETS, PanAndScan, PatchPictures
from facet.prepared_media import PreparedMedia
from tests.media.families import media_spec

FOLDER = Path(__file__).parent / "pictures"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
LIMITS = MediaLimits()


def prepare_file(name: str, family: str, options: MediaOptions) -> tuple[PreparedMedia, ...]:
    data, spec = (FOLDER / name).read_bytes(), media_spec(family).pictures
    assert spec is not None
    return prepare_picture(open_picture(data, LIMITS), spec, options, data)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", EXPECTED["decoded"])
def test_decoded_as_the_reference_does(name: str) -> None:
    """EXIF orientation, alpha, palettes, grey, one bit, CMYK, the first picture of an animation."""
    pixels = np.asarray(open_picture((FOLDER / name).read_bytes(), LIMITS))
    assert sha256(pixels.tobytes()) == EXPECTED["decoded"][name]


@pytest.mark.parametrize("case", EXPECTED["prepared"], ids=lambda case: f"{case['family']}-{case['file']}")
def test_prepared_as_the_reference_does(case: dict[str, Any]) -> None:
    asked = MediaOptions(
        max_soft_tokens=case["options"].get("max_soft_tokens"), pan_and_scan=case["options"].get("do_pan_and_scan")
    )
    found = prepare_file(case["file"], case["family"], asked)
    pixels = [media.arrays.get("patches") or media.arrays["pixels"] for media in found]
    assert [sha256(array.data) for array in pixels] == case["pixels_sha256"]
    assert {media.num_tokens for media in found} == {case["num_tokens"]}


def test_sixteen_bits_of_grey_keep_their_upper_half() -> None:
    """Unlike the reference, which clips them to white."""
    stored = np.asarray(Image.open(FOLDER / "grey16.png"))
    found = np.asarray(open_picture((FOLDER / "grey16.png").read_bytes(), LIMITS))
    assert np.array_equal(found[..., 0], stored >> 8)
    assert np.array_equal(found[..., 0], found[..., 2])


def test_patches_and_positions_rebuild_the_picture() -> None:
    for family, side in (("gemma4_e", 16), ("gemma4_12b", 48)):
        (media,) = prepare_file("fits.jpg", family, MediaOptions(max_soft_tokens=70))
        patches, positions = media.arrays["patches"].numpy(), media.arrays["positions"].numpy()
        assert positions.dtype == np.int32
        rebuilt = np.zeros((384, 384, 3), np.uint8)
        for patch, (x, y) in zip(patches, positions, strict=True):
            rebuilt[y * side : (y + 1) * side, x * side : (x + 1) * side] = patch.reshape(side, side, 3)
        assert np.array_equal(rebuilt, open_picture((FOLDER / "fits.jpg").read_bytes(), LIMITS))


# Height, width; then rows and columns of tokens for each budget.
GRIDS = {
    (768, 768): [(8, 8), (11, 11), (16, 16), (23, 23), (33, 33)],
    (3024, 4032): [(7, 9), (10, 13), (14, 19), (20, 27), (28, 38)],
    (1080, 1920): [(6, 11), (8, 15), (12, 22), (17, 31), (25, 44)],
    (100, 1000): [(2, 26), (3, 37), (5, 52), (7, 74), (10, 105)],
    (9, 900): [(1, 70), (1, 118), (1, 167), (2, 236), (3, 334)],
    (900, 3): [(70, 1), (140, 1), (280, 1), (409, 1), (579, 1)],
    (5, 7): [(7, 9), (10, 14), (14, 19), (20, 28), (28, 39)],
}


@pytest.mark.parametrize("size", GRIDS)
def test_the_grid_of_a_picture(size: tuple[int, int]) -> None:
    assert [token_grid(*size, budget, 48) for budget in BUDGETS] == GRIDS[size]


@pytest.mark.parametrize("size", [(1, 1), (1, 32_768), (32_768, 1), (3, 900), (900, 3), (4000, 4001)])
def test_a_grid_keeps_to_its_budget(size: tuple[int, int]) -> None:
    for budget in BUDGETS:
        rows, columns = token_grid(*size, budget, 48)
        assert 1 <= rows * columns <= budget


PAN = PanAndScan(enabled=True, min_crop_size=256, max_num_crops=4, min_ratio=1.2)


@pytest.mark.parametrize(
    ("width", "height", "sizes"),
    [
        (830, 311, [(277, 311), (277, 311), (276, 311)]),
        (300, 601, [(300, 301), (300, 300)]),
        (640, 480, [(320, 480)] * 2),
        (2000, 300, [(500, 300)] * 4),
        (360, 300, []),
        (512, 255, []),
        (500, 500, []),
    ],
)
def test_crops_of_pan_and_scan(width: int, height: int, sizes: list[tuple[int, int]]) -> None:
    boxes = crop_boxes(width, height, PAN)
    assert [(right - left, bottom - top) for left, top, right, bottom in boxes] == sizes


@pytest.mark.parametrize(
    ("options", "size", "budget"),
    [
        (MediaOptions(), (4000, 4000), 280),
        (MediaOptions(detail="low"), (4000, 4000), 70),
        (MediaOptions(detail="high"), (10, 10), 1120),
        (MediaOptions(detail="auto"), (10, 10), 70),
        (MediaOptions(detail="auto"), (480, 640), 140),
        (MediaOptions(detail="auto"), (4000, 4000), 560),
        (MediaOptions(detail="high", max_soft_tokens=140), (10, 10), 140),
    ],
)
def test_the_budget_of_a_detail(options: MediaOptions, size: tuple[int, int], budget: int) -> None:
    spec = media_spec("gemma4_e").pictures
    assert isinstance(spec, PatchPictures)
    assert choose_budget(spec, *size, options) == budget


def test_keys_tell_pictures_budgets_families_and_crops_apart() -> None:
    keys = [
        media.content_key
        for name in ("photo.jpg", "panorama.jpg")
        for family in ("gemma4_e", "gemma4_12b", "gemma3")
        for options in (MediaOptions(max_soft_tokens=70), MediaOptions(max_soft_tokens=140, pan_and_scan=True))
        for media in prepare_file(name, family, options)
    ]
    # A square picture has no budget, and where there are no crops pan and scan changes nothing.
    assert len(set(keys)) == len(keys) - 1
    again = prepare_file("photo.jpg", "gemma4_e", MediaOptions(max_soft_tokens=70))[0]
    assert again.content_key == keys[0]


def test_transparent_palettes_and_animations_raise_no_warning() -> None:
    image = Image.new("P", (20, 10), 3)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", transparency=bytes(range(200)))
    assert open_picture(buffer.getvalue(), LIMITS).size == (20, 10)
