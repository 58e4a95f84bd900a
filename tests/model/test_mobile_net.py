"""Gemma 3n's tower computes what timm computes, from the published names and shapes."""

from dataclasses import replace

import torch

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.model.checkpoint import as_placed
from facet.model.towers import build_vision_tower
from facet.model.vision_config import read_vision_spec
from facet.model.vision_weights import vision_targets
from facet.vision_spec import MobileNetSpec
from tests.mobile_net_sample import CONFIG, random_picture, random_weights
from tests.published_configs import PUBLISHED

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"))
ROWS = {
    0: (-1.34711, 1.47702, -2.18956, 0.65858, 0.23432, 1.0314, 0.50072, 0.42651),
    17: (-1.00254, 1.40062, -2.05326, 0.45145, 0.00143, 0.93409, 0.76223, 0.29436),
    255: (-2.18307, -0.86755, -1.47515, -0.8259, 0.50241, -1.3841, 0.56604, 0.35544),
}
TABLE_ROW_3 = (-0.26376, 0.72155, 0.23368, 0.53652, 3.02896, -1.25549, -0.24028, -0.52079)


@torch.no_grad()
def test_rows_are_those_of_timm() -> None:
    spec = read_vision_spec(CONFIG, 64)
    assert isinstance(spec, MobileNetSpec)
    tower = build_vision_tower(spec, FLOAT32)
    weights = random_weights(spec)
    parameters = dict(tower.named_parameters())
    for target in vision_targets(spec):
        values = as_placed(weights[target.name], target)
        place = parameters.get(target.place)
        if place is None:
            linear = tower.get_submodule(target.place)
            assert isinstance(linear, Linear)
            linear.fill(values)
        else:
            place.data.copy_(values)
    picture = {"pixels": random_picture()}
    rows, again = tower([picture, picture])
    torch.testing.assert_close(rows, again)
    for index, expected in ROWS.items():
        torch.testing.assert_close(rows[index, :8], torch.tensor(expected), atol=5e-4, rtol=0)
    found = tower.embedder.look_up(torch.tensor([3]))[0, :8]
    torch.testing.assert_close(found, torch.tensor(TABLE_ROW_3), atol=2e-5, rtol=0)


def test_the_published_tower_has_its_size() -> None:
    spec = read_vision_spec(PUBLISHED["Gemma 3n E4B"], 2048)
    assert spec is not None
    targets = vision_targets(spec)
    towers = [target for target in targets if target.name.startswith("vision_tower.")]
    assert len(towers) == 548
    assert round(sum(target.num_values for target in towers) / 1e6) == 294
    tower = build_vision_tower(spec, replace(FLOAT32, device=torch.device("meta")))
    places = {target.place for target in targets}
    assert {name.removesuffix(".weight.values") for name, _ in tower.named_parameters()} == places
