"""Towers in their published sizes, captured: an item has the rows that it has kernel by kernel, and always the same."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.layers.placement import Placement
from facet.layers.vision.patch_tower import PatchTower
from facet.model.families import read_model_spec
from facet.model.towers import find_towers
from facet.progress import Silent
from facet.runner.recording import recording
from facet.runner.tower_graphs import Item, PaddingTower, TowerGraphs
from tests.published_configs import PUBLISHED
from tests.vision import random_pictures

GPU = torch.device("cuda")
NAMES = ["Gemma 4 E4B", "Gemma 3 4B", "Gemma 3n E4B"]


def towers_of(name: str, arithmetic: Arithmetic, dtype: torch.dtype) -> list[PaddingTower]:
    placement = Placement(dtype=dtype, device=GPU, arithmetic=arithmetic)
    found = find_towers(PUBLISHED[name], read_model_spec(PUBLISHED[name]), None)
    loaded = dict.fromkeys(found.load(placement, Silent()).values())
    towers = [tower for tower in loaded if isinstance(tower, PaddingTower)]
    assert towers
    return towers


def encoded(tower: PaddingTower, items: Sequence[Item]) -> list[Tensor]:
    """One after the other, so that each lies where the one before it lay."""
    graphs = TowerGraphs(tower)
    with recording(GPU) as recorder:
        graphs.capture(recorder, Silent())
    made = []
    for item in items:
        rows = graphs.encode(item)
        assert rows is not None
        made.append(rows.clone())
    return made


def random_items(tower: PaddingTower) -> Iterator[Item]:
    """Of several sizes, where a tower takes them; most lie where a larger one lay."""
    if isinstance(tower, PatchTower):
        for picture in random_pictures(tower.spec, ((7, 10), (5, 4), (14, 20), (12, 12), (1, 1))):
            yield {name: content.to(GPU) for name, content in picture.items()}
        return
    draw = torch.Generator("cuda").manual_seed(0)
    for share in (1.0, 0.3, 0.9):
        item = tower.padded_inputs(tower.padded_sizes[0])
        if "features" in item:
            features = item["features"]
            yield {"features": features.normal_(generator=draw)[: int(share * len(features))]}
        else:
            yield {"pixels": item["pixels"].random_(0, 256, generator=draw)}


# With random weights a tower is chaotic: in bfloat16 the last bit of one pixel changes its rows by half. Where sums may
# be added in another order, only float32 tells rounding from mistakes.
@pytest.mark.parametrize(
    ("arithmetic", "dtype"),
    [(USUAL, torch.float32), (BATCH_INVARIANT, torch.bfloat16)],
    ids=["usual", "invariant"],
)
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_captured_rows_are_those_of_a_plain_pass_and_always_the_same(
    name: str, arithmetic: Arithmetic, dtype: torch.dtype
) -> None:
    for tower in towers_of(name, arithmetic, dtype):
        items = list(random_items(tower))
        made = encoded(tower, items)
        for item, rows, other_way_round in zip(items, made, encoded(tower, items[::-1])[::-1], strict=True):
            assert torch.equal(rows, other_way_round), "not a bit is left of those before it"
            (expected,) = tower([item])  # type: ignore[operator]
            difference = (rows[: len(expected)].float() - expected.float()).abs().mean()
            assert difference <= 0.02 * expected.float().abs().mean()
