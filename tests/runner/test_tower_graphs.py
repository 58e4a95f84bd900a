"""A picture filled up to a size has the rows that it has alone, whatever an earlier one left behind it."""

from collections.abc import Callable

import pytest
import torch

from facet.layers.placement import Placement
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.towers import find_towers
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent
from facet.runner.recording import NoRecorder
from facet.runner.tower_graphs import PaddingTower, TowerGraphs, graphs_of
from tests.tiny_models import TinyModel
from tests.vision import random_pictures

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"))


@torch.inference_mode()
@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_31b_mm", "gemma3_mm"])
def test_padded_equals_unpadded(name: str, tiny_model: Callable[[str], TinyModel]) -> None:
    folder = tiny_model(name).folder
    config = read_config_file(folder / "config.json")
    headers = read_headers(find_weight_files(folder))
    tower = find_towers(config, read_model_spec(config), headers).load(FLOAT32, Silent())["image"]
    assert isinstance(tower, PaddingTower)
    graphs = graphs_of({"image": tower})[tower]
    graphs.capture(NoRecorder(), Silent())
    # The second is shorter than the first and lies where it lay; the third fills another size.
    for picture in random_pictures(tower.spec, ((6, 7), (4, 3), (9, 9), (1, 1))):
        (expected,) = tower([picture])
        rows = graphs.encode(picture)
        assert rows is not None
        torch.testing.assert_close(rows[: len(expected)], expected, rtol=1e-5, atol=1e-5)
        assert bool(rows.isfinite().all())


@torch.inference_mode()
def test_a_clip_filled_up_equals_itself(tiny_model: Callable[[str], TinyModel]) -> None:
    folder = tiny_model("gemma4_e2b_mm").folder
    config = read_config_file(folder / "config.json")
    headers = read_headers(find_weight_files(folder))
    tower = find_towers(config, read_model_spec(config), headers).load(FLOAT32, Silent())["audio"]
    assert isinstance(tower, PaddingTower)
    graphs = graphs_of({"audio": tower})[tower]
    graphs.capture(NoRecorder(), Silent())
    for num_frames in (431, 97, 501):
        clip = {"features": torch.randn(num_frames, tower.spec.num_bins)}
        (expected,) = tower([clip])
        rows = graphs.encode(clip)
        assert rows is not None
        torch.testing.assert_close(rows[: len(expected)], expected, rtol=1e-5, atol=1e-5)


def test_what_is_too_large_is_not_filled_up(tiny_model: Callable[[str], TinyModel]) -> None:
    config = tiny_model("gemma4_e2b_mm").config
    (found,) = (tower for tower in find_towers(config, read_model_spec(config), None).towers if "image" in tower.kinds)
    tower = found.build(FLOAT32)
    assert isinstance(tower, PaddingTower)
    assert TowerGraphs(tower).encode({"patches": torch.zeros(tower.padded_sizes[-1] + 1, 1)}) is None
