"""Towers in their published sizes, captured: an item has the rows that it has kernel by kernel."""

import pytest
import torch

from facet.layers.placement import Placement
from facet.model.families import read_model_spec
from facet.model.towers import find_towers
from facet.progress import Silent
from facet.runner.recording import recording
from facet.runner.tower_graphs import graphs_of
from tests.published_configs import PUBLISHED


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 3 4B", "Gemma 3n E4B"])
@torch.inference_mode()
def test_captured_rows_are_those_of_a_plain_pass(name: str) -> None:
    placement = Placement(dtype=torch.bfloat16, device=torch.device("cuda"))
    found = find_towers(PUBLISHED[name], read_model_spec(PUBLISHED[name]), None)
    captured = graphs_of(found.load(placement, Silent()))
    assert captured
    for tower, graphs in captured.items():
        with recording(placement.device) as recorder:
            graphs.capture(recorder, Silent())
        for seed in range(2):  # the second lies where the first one lay
            item = tower.padded_inputs(tower.padded_sizes[0])
            for content in item.values():
                if content.dtype == torch.uint8:
                    content.random_(0, 256, generator=torch.Generator("cuda").manual_seed(seed))
                elif content.is_floating_point():
                    content.normal_(generator=torch.Generator("cuda").manual_seed(seed))
            (expected,) = tower([item])  # type: ignore[operator]
            rows = graphs.encode(item)
            assert rows is not None
            difference = (rows[: len(expected)].float() - expected.float()).abs().mean()
            assert difference <= 0.02 * expected.float().abs().mean()
