"""A kind of weight is nobody's business but its own: whole models run on other kinds, and no layer changes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from facet.kernels.arithmetic import USUAL
from facet.layers.placement import Placement
from facet.layers.weight import DenseWeight, Weight
from facet.model.checkpoint import load_weights, match_tensors
from facet.model.gemma import Gemma
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent
from tests.layers.other_weights import (
    Adapted,
    Int8Products,
    Int8ProductsAfterNorms,
    Int8Rows,
    PlainWeight,
    TwoRanks,
    change_weights,
)
from tests.model.paged_model import PagedSequence, load
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint

# Per-layer inputs and layers without keys; values that are keys; experts; norms less one; streams and sparse gates.
NAMES = ("Gemma 4 E4B", "Gemma 4 31B", "Gemma 4 26B-A4B", "Gemma 3 1B", "Gemma 3n E4B")
PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]  # past the window of six


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_checkpoint(tmp_path_factory.mktemp("model"), SHRUNK[name], random_tensors(SHRUNK[name]))
        for name in NAMES
    }


def logits(model: Gemma) -> Tensor:
    """Of a prompt in two chunks, the second of which skips layers where it can."""
    sequence = PagedSequence(model, len(PROMPT))
    return torch.cat((sequence.run(PROMPT[:9]), sequence.run(PROMPT[9:], num_logit_rows=1, skip_upper=True)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("kind", "tolerance", "is_another_model"),
    [
        (Int8Rows, 0.0, True),  # scales are powers of two: no bit is lost
        # Sums in another order, through twelve layers with norms whose random weights enlarge what differs.
        (TwoRanks, 2e-3, False),
        (Adapted, 2e-3, True),
    ],
)
def test_equals_the_dense_model(
    name: str, kind: type[PlainWeight], tolerance: float, is_another_model: bool, folders: dict[str, Path]
) -> None:
    def dense(values: Tensor) -> Weight:
        return DenseWeight(nn.Parameter(kind.of(values).dense(), requires_grad=False), USUAL)

    got = logits(change_weights(load(folders[name]).model, kind.of))
    expected = logits(change_weights(load(folders[name]).model, dense))
    assert (got - expected).abs().max() <= tolerance
    assert torch.equal(expected, logits(load(folders[name]).model)) is not is_another_model


class Int8Placement(Placement):
    def weight(self, *shape: int) -> Weight:
        return Int8Rows(shape)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_fills_any_kind_part_by_part(name: str, folders: dict[str, Path]) -> None:
    loaded = load(folders[name])
    model = Gemma(loaded.spec, loaded.context_length, Int8Placement(dtype=torch.float32, device=torch.device("cpu")))
    load_weights(model, match_tensors(loaded.spec, read_headers(find_weight_files(folders[name]))), Silent())
    assert torch.equal(logits(model), logits(change_weights(loaded.model, Int8Rows.of)))


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_may_round_for_the_product_behind_it(name: str, folders: dict[str, Path]) -> None:
    """Rounded by the norm or by the product, inputs are the same; and every norm with one reader did round."""
    late = logits(change_weights(load(folders[name]).model, Int8Products.of))
    assert Int8Products.num_rounded_before == 0
    model = change_weights(load(folders[name]).model, Int8ProductsAfterNorms.of)
    assert torch.equal(logits(model), late)
    num_rounded, Int8Products.num_rounded_before = Int8Products.num_rounded_before, 0
    # Of the two chunks, one stops in the last layer that owns keys: its rows that go on pass the rest by themselves.
    readers = ["gate_up"] if model.spec.altup else ["projections", "gate_up"]
    readers += ["experts"] * (model.spec.layers[0].moe is not None)
    assert num_rounded >= 2 * len(readers) * model.spec.num_layers
