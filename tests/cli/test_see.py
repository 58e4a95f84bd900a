"""`facet see`: the picture it writes, what it prints, what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from facet.cli import main
from facet.media.limits import MediaLimits
from facet.media.opening import open_picture
from facet.media.options import MediaOptions
from facet.media.pictures import prepare_picture
from facet.media.view import grid_of, rebuild
from tests.media.families import media_spec
from tests.published_configs import published

PICTURES = Path(__file__).parent.parent / "media" / "pictures"


def test_the_picture_with_its_grid_and_its_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.png"
    assert main(["see", str(PICTURES / "fits.jpg"), "--max-soft-tokens", "70", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "384 x 384 pixels" in printed
    assert "8 rows of 8 soft tokens = 64" in printed
    assert "66 tokens, with those before and after" in printed
    assert "70: 64, 140: 121, 280: 256, 560: 529, 1120: 1089" in printed
    with Image.open(output) as drawn:
        pixels = np.asarray(drawn)
    shown = np.asarray(open_picture((PICTURES / "fits.jpg").read_bytes(), MediaLimits()))
    assert pixels.shape == shown.shape
    # A light line and a dark one every 48 pixels, and nothing else.
    assert (pixels[48] == 255).all()
    assert (pixels[1:48, 96] == 255).all()
    assert (pixels[2:48, 97] == 0).all()
    inner = [index for index in range(384) if index % 48 > 1 or index < 2]
    assert np.array_equal(pixels[np.ix_(inner, inner)], shown[np.ix_(inner, inner)])


def test_beside_the_picture_if_no_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "a.png"
    picture.write_bytes((PICTURES / "tiny.png").read_bytes())
    assert main(["see", str(picture), "--detail", "low"]) == 0
    assert (tmp_path / "a.png.seen.png").is_file()
    assert "written: " in capsys.readouterr().out


def test_another_model_and_its_crops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published("Gemma 3 4B")))
    output = tmp_path / "out.png"
    arguments = ["see", str(PICTURES / "panorama.jpg"), "--model", str(tmp_path), "--pan-and-scan"]
    assert main([*arguments, "--output", str(output)]) == 0
    assert "16 rows of 16 soft tokens = 256, and as much for each of 3 crops" in capsys.readouterr().out
    with Image.open(output) as drawn:
        assert drawn.size == (4 * 896 + 3 * 16, 896)


@pytest.mark.parametrize("family", ["gemma4_e", "gemma4_12b", "gemma3"])
def test_what_is_drawn_is_what_a_tower_gets(family: str) -> None:
    data, spec = (PICTURES / "photo.jpg").read_bytes(), media_spec(family).pictures
    assert spec is not None
    image = open_picture(data, MediaLimits())
    (media,) = prepare_picture(image, spec, MediaOptions(), data)
    rebuilt = rebuild(media, spec)
    rows, columns = grid_of(media, spec)
    assert rows * columns == media.num_tokens
    filter = Image.Resampling.BILINEAR if family == "gemma3" else Image.Resampling.BICUBIC
    assert rebuilt.tobytes() == image.resize(rebuilt.size, filter).tobytes()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.png"], "nowhere.png cannot be read (No such file"),
        ([str(PICTURES / "expected.json")], "is in no format that is known here"),
        ([str(PICTURES / "tiny.png"), "--max-soft-tokens", "71"], "one of 70, 140"),
        ([str(PICTURES / "tiny.png"), "--pan-and-scan"], "shows no crops"),
        ([str(PICTURES / "tiny.png"), "--output", "/nowhere/a.png"], "cannot be written"),
        ([str(PICTURES / "tiny.png"), "--model", "bad name"], "neither a folder nor the name"),
    ],
)
def test_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["see", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_model_without_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(published("Gemma 3 1B")))
    assert main(["see", str(PICTURES / "tiny.png"), "--model", str(tmp_path)]) == 2
    assert "reads no pictures" in capsys.readouterr().err
