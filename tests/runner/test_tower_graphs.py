"""An item filled up to a size has the rows that it has alone, whatever an earlier one left behind it."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NoReturn

import pytest
import torch
from torch import nn

from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.layers.placement import Placement
from facet.layers.vision import mobile_net
from facet.media_span import MediaKind
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.towers import build_tower, find_towers
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent
from facet.runner.media_inputs import MediaInputs
from facet.runner.recording import NoRecorder
from facet.runner.tower_graphs import Item, PaddingTower, TowerGraphs, graphs_of
from tests.mobile_net_sample import SIDE, random_picture
from tests.published_configs import PUBLISHED
from tests.tiny_3n import make_tiny_3n
from tests.tiny_models import TinyModel
from tests.vision import random_pictures

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"), arithmetic=BATCH_INVARIANT)


Load = Callable[[str], Mapping[MediaKind, nn.Module]]


@pytest.fixture(scope="module")
def load(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Load:
    @cache
    def get(name: str) -> Mapping[MediaKind, nn.Module]:
        folder = make_tiny_3n(tmp_path_factory.mktemp("3n")).folder if name == "3n" else tiny_model(name).folder
        config = read_config_file(folder / "config.json")
        headers = read_headers(find_weight_files(folder))
        return find_towers(config, read_model_spec(config), headers).load(FLOAT32, Silent())

    return get


@torch.inference_mode()
def check(tower: nn.Module, items: Sequence[Item]) -> None:
    """In the order given, so that each lies where the one before it lay."""
    graphs = captured(tower)
    for item in items:
        (expected,) = tower([item])
        rows, first = graphs.encode(item), captured(tower).encode(item)
        assert rows is not None
        assert first is not None
        torch.testing.assert_close(rows[: len(expected)], expected, rtol=1e-5, atol=1e-5)
        assert bool(rows.isfinite().all())
        assert torch.equal(rows, first), "not a bit is left of those before it"


def captured(tower: nn.Module) -> TowerGraphs:
    assert isinstance(tower, PaddingTower)
    graphs = graphs_of({"image": tower})[tower]
    graphs.capture(NoRecorder(), Silent())
    return graphs


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_31b_mm", "gemma3_mm"])
def test_pictures(name: str, load: Load) -> None:
    """The second is shorter than the first; the third fills another size."""
    tower = load(name)["image"]
    check(tower, random_pictures(tower.spec, ((6, 7), (4, 3), (9, 9), (1, 1))))


def test_pictures_of_3n(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mobile_net, "PADDED_SIDE", SIDE)
    tower, picture = load("3n")["image"], random_picture()
    check(tower, [{"pixels": picture}, {"pixels": 255 - picture}])
    larger = {"pixels": torch.zeros(3, 2 * SIDE, 2 * SIDE)}
    assert TowerGraphs(tower).encode(larger) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "lengths"), [("gemma4_e2b_mm", (431, 97, 501)), ("3n", (431, 97, 1, 501))])
def test_clips(name: str, lengths: Sequence[int], load: Load) -> None:
    tower = load(name)["audio"]
    check(tower, [{"features": torch.randn(length, tower.spec.num_bins)} for length in lengths])


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 3 4B", "Gemma 3n E4B"])
def test_passes_ask_the_device_for_nothing(name: str) -> None:
    """What a graph replays cannot wait for a value. Tensors without values show it, in the published sizes."""
    config = PUBLISHED[name]
    nowhere = Placement(dtype=torch.bfloat16, device=torch.device("meta"))
    found = find_towers(config, read_model_spec(config), None).towers
    towers = [build_tower(each.spec, nowhere) for each in found]
    assert any(isinstance(tower, PaddingTower) for tower in towers)
    for tower in towers:
        if isinstance(tower, PaddingTower):
            size = tower.padded_sizes[-1]
            count = torch.zeros((), dtype=torch.int64, device="meta")
            rows = tower.forward_padded(tower.padded_inputs(size), count)
            assert rows.shape == (tower.num_padded_rows, tower.spec.output_size)


def test_what_is_too_large_is_not_filled_up(tiny_model: Callable[[str], TinyModel]) -> None:
    config = tiny_model("gemma4_e2b_mm").config
    (found,) = (tower for tower in find_towers(config, read_model_spec(config), None).towers if "image" in tower.kinds)
    tower = build_tower(found.spec, FLOAT32)
    assert isinstance(tower, PaddingTower)
    assert TowerGraphs(tower).encode({"patches": torch.zeros(tower.padded_sizes[-1] + 1, 1)}) is None


class FailingRecorder(NoRecorder):
    def record(self, run: Callable[[], None]) -> NoReturn:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


def test_a_tower_that_cannot_be_captured_is_left_out(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    towers = load("gemma4_e2b_mm")
    media = MediaInputs(towers, 64, FLOAT32, num_encoder_rows=16)
    media.capture_graphs(FailingRecorder(), Silent())
    assert not media._graphs
    assert "kernel by kernel: operation not permitted when stream is capturing" in caplog.text
    assert "and more" not in caplog.text
    media.capture_graphs(NoRecorder(), Silent())
    assert media._graphs
