"""Which matrices are kept as one, and by which kernels they are multiplied."""

import pytest

from facet.model.families import read_model_spec
from facet.model.gguf.types import BY_NAME
from facet.model.kept_matrices import kept_matrices
from facet.model.weight_map import tensor_targets
from tests.published_configs import text_only


@pytest.mark.parametrize(
    ("gate_up", "down", "any_kind"),
    [
        ("Q4_K", "Q6_K", [False, True]),  # as in files in Q4_K_M: kernels for four bits take another second matrix
        ("Q4_0", "Q8_0", [False, True]),
        ("Q6_K", "Q4_K", [True, True]),
        ("Q4_K", "Q4_K", [False, False]),
    ],
)
def test_experts_of_two_formats(gate_up: str, down: str, any_kind: list[bool]) -> None:
    spec = read_model_spec(text_only("Gemma 4 26B-A4B"))
    types = {"experts.gate_up": gate_up, "experts.down": down}
    formats = {
        target.name: BY_NAME[type].format
        for target in tensor_targets(spec)
        for ending, type in types.items()
        if target.place.endswith(ending)
    }
    kept = kept_matrices(spec, {name: format for name, format in formats.items() if format is not None})
    experts = [matrix for place, (matrix, *_) in kept.items() if place.endswith(tuple(types))]
    assert len(experts) == 2 * spec.num_layers
    for ending, expected in zip(types, any_kind, strict=True):
        assert {matrix.is_of_any_kind for matrix in experts if matrix.place.endswith(ending)} == {expected}
