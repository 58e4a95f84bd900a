"""In every model, weights are read in the order that products are told."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from facet.layers.weight import DenseWeight
from tests.layers.test_weight_kinds import NAMES, PROMPT
from tests.model.paged_model import PagedSequence, load
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_who_is_read_next(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(write_checkpoint(tmp_path, SHRUNK[name], random_tensors(SHRUNK[name]))).model
    read: list[Tensor] = []
    for operation in ("linear", "geglu_linear", "sparse_geglu_linear"):
        monkeypatch.setattr(DenseWeight, operation, _recording(getattr(DenseWeight, operation), read))
    PagedSequence(model, len(PROMPT)).run(PROMPT)
    large = {
        id(product.weight.values)
        for layer in model.layers
        for product in (layer.attention.projections, layer.attention.output, layer.mlp.gate_up, layer.mlp.down)
    }
    order = [weight for weight in read if id(weight) in large]
    order = [weight for index, weight in enumerate(order) if index == 0 or weight is not order[index - 1]]
    assert len(order) == 4 * model.spec.num_layers
    for index, weight in enumerate(order):
        later = getattr(weight, "read_ahead_of", None)
        has_experts_behind = index % 4 == 3 and model.spec.layers[index // 4].moe is not None
        if index + 1 == len(order) or has_experts_behind:
            assert later is None
        else:
            assert later is order[index + 1]


def _recording(operation: Any, read: list[Tensor]) -> Any:
    def recorded(weight: DenseWeight, *arguments: Any) -> Tensor:
        read.append(weight.values)
        product: Tensor = operation(weight, *arguments)
        return product

    return recorded
