"""The map of tensors: parameter totals of the published models, and name by name what transformers has."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.weight import DenseWeight
from facet.model.families import read_model_spec
from facet.model.gemma import Gemma
from facet.model.weight_map import is_unused, tensor_targets
from facet.model_spec import ModelSpec
from tests.published_configs import PUBLISHED, published, text_only

CLASSES = {
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "gemma3n_text": ("Gemma3nTextConfig", "Gemma3nForCausalLM"),
    "gemma4_text": ("Gemma4TextConfig", "Gemma4ForCausalLM"),
    "gemma4_unified_text": ("Gemma4UnifiedTextConfig", "Gemma4UnifiedForCausalLM"),
}


def spec_of(name: str) -> ModelSpec:
    return read_model_spec(PUBLISHED[name])


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Gemma 4 E2B", 4.629),
        ("Gemma 4 E4B", 7.463),
        ("Gemma 4 12B", 11.907),
        ("Gemma 4 26B-A4B", 25.233),
        ("Gemma 4 31B", 30.697),
    ],
)
def test_totals_of_the_fact_sheet(name: str, billions: float) -> None:
    total = sum(target.num_values for target in tensor_targets(spec_of(name)))
    assert round(total / 1e9, 3) == billions


def oracle_tensors(name: str) -> dict[str, tuple[int, ...]]:
    """Names inside the decoder and shapes of a full-size transformers model, without its memory."""
    import transformers

    config_class, model_class = CLASSES[text_only(name)["model_type"]]
    config = getattr(transformers, config_class)(**json.loads(json.dumps(text_only(name))))
    with torch.device("meta"):
        model = getattr(transformers, model_class)(config)
    state: dict[str, Any] = model.state_dict()
    return {key.removeprefix("model."): tuple(value.shape) for key, value in state.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_are_those_of_transformers(name: str) -> None:
    spec = spec_of(name)
    theirs = oracle_tensors(name)
    ours = {target.name: target.shape for target in tensor_targets(spec)}
    assert len(ours) == len(tensor_targets(spec)), "a name occurs twice"
    for key in set(theirs) - set(ours):
        assert is_unused(spec, key), f"{key} is in the checkpoint and read by nobody"
    assert {key: theirs[key] for key in ours} == ours


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_filled_exactly_once(name: str, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter by one target, a `Linear` by one or by one for each part: nothing is left uninitialised."""
    config = published(name)
    config.get("text_config", config)["tie_word_embeddings"] = tied
    spec = read_model_spec(config)
    model = Gemma(spec, 1, Placement(dtype=torch.bfloat16, device=torch.device("meta")))
    parameters = dict(model.named_parameters())
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    filled: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def fill(weight: DenseWeight, values: Tensor, rows: slice) -> None:
        assert weight.values[..., rows, :].shape == values.shape
        filled[id(weight.values)].append((rows.start, rows.stop))

    monkeypatch.setattr(DenseWeight, "fill", fill)
    for target in tensor_targets(spec):
        if target.place in linears:
            linears[target.place].fill(torch.empty(target.shape, device="meta"), target.part)
        else:
            assert parameters[target.place].shape == target.shape
            filled[id(parameters[target.place])].append((0, target.shape[0]))
    for key, parameter in parameters.items():
        ranges = sorted(filled.pop(id(parameter)))
        num_rows = parameter.shape[0] if parameter.dim() == 1 else parameter.shape[-2]
        assert (ranges[0][0], ranges[-1][1]) == (0, num_rows), key
        assert all(first[1] == second[0] for first, second in pairwise(ranges)), key
    assert not filled


def test_only_gemma_3_norms_are_stored_less_one() -> None:
    for name in PUBLISHED:
        offsets = {target.name: target.offset for target in tensor_targets(spec_of(name))}
        for key, offset in offsets.items():
            assert offset == (1.0 if name.startswith("Gemma 3 ") and "norm" in key else 0.0)


class TestUnused:
    """What published files hold and nobody reads."""

    @pytest.mark.parametrize("part", ["k_proj", "v_proj", "k_norm"])
    def test_keys_of_layers_that_read_anothers(self, part: str) -> None:
        spec = spec_of("Gemma 4 E4B")
        assert is_unused(spec, f"layers.24.self_attn.{part}.weight")
        assert not is_unused(spec, f"layers.23.self_attn.{part}.weight")
        assert not is_unused(spec, "layers.24.self_attn.q_proj.weight")
        assert not is_unused(spec, f"layers.42.self_attn.{part}.weight")
        assert not is_unused(spec, f"layers.24.cross_attn.{part}.weight")

    def test_a_head_that_repeats_the_embedding(self) -> None:
        assert is_unused(spec_of("Gemma 4 E4B"), "lm_head.weight")
        untied = read_model_spec({**published("Gemma 3 1B"), "tie_word_embeddings": False})
        assert not is_unused(untied, "lm_head.weight")

    def test_stored_angles(self) -> None:
        spec = spec_of("Gemma 3 1B")
        assert is_unused(spec, "rotary_emb.inv_freq")
        assert is_unused(spec, "layers.0.self_attn.rotary_emb.inv_freq")

    @pytest.mark.parametrize(
        "name", ["", "layers", "layers.²", "layers.².self_attn.k_proj.weight", "layers.-1.self_attn.k_proj.weight"]
    )
    def test_strange_names_are_not(self, name: str) -> None:
        assert not is_unused(spec_of("Gemma 4 E4B"), name)
