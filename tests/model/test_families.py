"""Published configs become the specs of the fact sheet, whichever way they are spelled and whatever they omit."""

from dataclasses import replace
from typing import Any

import pytest

from facet.model.families import read_model_spec
from facet.model_spec import ModelSpec, MoeSpec, PerLayerInputSpec, RotarySpec
from tests.published_configs import FULL, PUBLISHED, SLIDING, published, text_only, wrapped

SLOW = RotarySpec(theta=1e4)
PROPORTIONAL = RotarySpec(theta=1e6, rotated_fraction=0.25)
PLAIN = RotarySpec(theta=1e6)
LINEAR = RotarySpec(theta=1e6, factor=8.0)

# Per model: hidden, layers, heads, window, positions, vocabulary; then (count, kv heads, head dim, rotary, MLP widths)
# of its sliding and of its global layers.
FACTS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "Gemma 4 E2B": (
        (1536, 35, 8, 512, 131_072, 262_144),
        (28, 1, 256, SLOW, {6144, 12_288}),
        (7, 1, 512, PROPORTIONAL, {6144, 12_288}),
    ),
    "Gemma 4 E4B": (
        (2560, 42, 8, 512, 131_072, 262_144),
        (35, 2, 256, SLOW, {10_240}),
        (7, 2, 512, PROPORTIONAL, {10_240}),
    ),
    "Gemma 4 12B": (
        (3840, 48, 16, 1024, 262_144, 262_144),
        (40, 8, 256, SLOW, {15_360}),
        (8, 1, 512, PROPORTIONAL, {15_360}),
    ),
    "Gemma 4 26B-A4B": (
        (2816, 30, 16, 1024, 262_144, 262_144),
        (25, 8, 256, SLOW, {2112}),
        (5, 2, 512, PROPORTIONAL, {2112}),
    ),
    "Gemma 4 31B": (
        (5376, 60, 32, 1024, 262_144, 262_144),
        (50, 16, 256, SLOW, {21_504}),
        (10, 4, 512, PROPORTIONAL, {21_504}),
    ),
    "Gemma 3 270M": (
        (640, 18, 4, 512, 32_768, 262_144),
        (15, 1, 256, SLOW, {2048}),
        (3, 1, 256, PLAIN, {2048}),
    ),
    "Gemma 3 1B": (
        (1152, 26, 4, 512, 32_768, 262_144),
        (22, 1, 256, SLOW, {6912}),
        (4, 1, 256, PLAIN, {6912}),
    ),
    "Gemma 3 4B": (
        (2560, 34, 8, 1024, 131_072, 262_208),
        (29, 4, 256, SLOW, {10_240}),
        (5, 4, 256, LINEAR, {10_240}),
    ),
    "Gemma 3 12B": (
        (3840, 48, 16, 1024, 131_072, 262_208),
        (40, 8, 256, SLOW, {15_360}),
        (8, 8, 256, LINEAR, {15_360}),
    ),
    "Gemma 3 27B": (
        (5376, 62, 32, 1024, 131_072, 262_208),
        (52, 16, 128, SLOW, {21_504}),
        (10, 16, 128, LINEAR, {21_504}),
    ),
    "Gemma 3n E2B": (
        (2048, 30, 8, 512, 32_768, 262_400),
        (24, 2, 256, SLOW, {8192}),
        (6, 2, 256, PLAIN, {8192}),
    ),
    "Gemma 3n E4B": (
        (2048, 35, 8, 512, 32_768, 262_400),
        (28, 2, 256, SLOW, {16_384}),
        (7, 2, 256, PLAIN, {16_384}),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_of_the_fact_sheet(name: str) -> None:
    spec = read_model_spec(PUBLISHED[name])
    (hidden, num_layers, num_heads, window, positions, vocabulary), *kinds = FACTS[name]
    assert (spec.hidden_size, spec.num_layers) == (hidden, num_layers)
    assert (spec.max_positions, spec.vocab_size) == (positions, vocabulary)
    assert {layer.num_heads for layer in spec.layers} == {num_heads}
    for kind, (count, num_kv_heads, head_dim, rotary, widths) in zip(("sliding", "global"), kinds, strict=True):
        layers = [layer for layer in spec.layers if layer.attention == kind]
        assert len(layers) == count
        assert {layer.window for layer in layers} == {window if kind == "sliding" else None}
        assert {layer.num_kv_heads for layer in layers} == {num_kv_heads}
        assert {layer.head_dim for layer in layers} == {head_dim}
        assert {layer.rotary for layer in layers} == {rotary}
        assert {layer.mlp_width for layer in layers} == widths


@pytest.mark.parametrize("name", PUBLISHED)
def test_traits_of_the_families(name: str) -> None:
    spec = read_model_spec(PUBLISHED[name])
    is_3, is_3n = name.startswith("Gemma 3 "), name.startswith("Gemma 3n")
    is_small_4 = name in ("Gemma 4 E2B", "Gemma 4 E4B")
    scales = {"Gemma 3 27B": 168**-0.5} if is_3 else {}
    assert {layer.attention_scale for layer in spec.layers} == {scales.get(name, 1 / 16 if is_3 else 1.0)}
    assert spec.norm_weights_offset == (1.0 if is_3 else 0.0)
    assert {layer.values_are_normed for layer in spec.layers} == {not is_3}
    assert spec.logit_softcap == (None if is_3 else 30.0)
    assert spec.has_layer_scalar == (not is_3 and not is_3n)
    assert spec.per_layer_input == (PerLayerInputSpec(width=256, vocab_size=262_144) if is_3n or is_small_4 else None)
    assert (spec.altup is not None) == is_3n
    merged = name in ("Gemma 4 12B", "Gemma 4 26B-A4B", "Gemma 4 31B")
    assert all(layer.values_are_keys == (merged and layer.attention == "global") for layer in spec.layers)
    experts = MoeSpec(num_experts=128, num_chosen=8, width=704) if name == "Gemma 4 26B-A4B" else None
    assert {layer.moe for layer in spec.layers} == {experts}
    with_images = (
        ("sliding",)
        if merged
        else ("sliding", "global")
        if name in ("Gemma 3 4B", "Gemma 3 12B", "Gemma 3 27B")
        else ()
    )
    assert spec.bidirectional_image_layers == with_images
    assert spec.eos_token_ids == (1, 106)
    assert (spec.norm_eps, spec.tied_embeddings, spec.checkpoint_dtype) == (1e-6, True, "bfloat16")


@pytest.mark.parametrize(
    ("name", "first", "sliding_source", "global_source"),
    [
        ("Gemma 4 E2B", 15, 13, 14),
        ("Gemma 4 E4B", 24, 22, 23),
        ("Gemma 3n E2B", 20, 18, 19),
        ("Gemma 3n E4B", 20, 18, 19),
    ],
)
def test_who_reads_whose_keys(name: str, first: int, sliding_source: int, global_source: int) -> None:
    spec = read_model_spec(PUBLISHED[name])
    assert spec.first_shared_layer == first
    assert all(layer.owns_kv for layer in spec.layers[:first])
    sources = {"sliding": sliding_source, "global": global_source}
    assert all(layer.kv_from_layer == sources[layer.attention] for layer in spec.layers[first:])


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "E" not in name])
def test_other_models_share_nothing(name: str) -> None:
    spec = read_model_spec(PUBLISHED[name])
    assert spec.first_shared_layer == spec.num_layers
    assert all(layer.owns_kv for layer in spec.layers)


def test_wide_mlps_of_e2b_begin_where_sharing_does() -> None:
    spec = read_model_spec(PUBLISHED["Gemma 4 E2B"])
    assert [layer.mlp_width for layer in spec.layers] == [6144] * 15 + [12_288] * 20


@pytest.mark.parametrize("name", ["Gemma 3n E2B", "Gemma 3n E4B"])
def test_sparse_layers_of_gemma_3n(name: str) -> None:
    spec = read_model_spec(PUBLISHED[name])
    assert [layer.mlp_sparsity for layer in spec.layers] == [0.95] * 10 + [0.0] * (spec.num_layers - 10)
    assert spec.altup is not None
    assert (spec.altup.num_streams, spec.altup.laurel_rank) == (4, 64)


class TestSpellings:
    """One decoder, several ways to write it down."""

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_with_and_without_towers(self, name: str) -> None:
        alone, inside = read_model_spec(text_only(name)), read_model_spec(wrapped(name))
        # Only a model that is given images says how they attend, and what stands for them.
        like_alone = replace(
            inside,
            architecture=alone.architecture,
            bidirectional_image_layers=alone.bidirectional_image_layers,
            media_token_ids=alone.media_token_ids,
        )
        assert like_alone == alone
        assert alone.architecture.endswith("ForCausalLM")
        assert inside.architecture.endswith("ForConditionalGeneration")

    @pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("Gemma 4")])
    def test_per_layer_config_equals_the_older_fields(self, name: str) -> None:
        config = published(name)
        text = config["text_config"]
        overrides = {"head_dim": text.pop("global_head_dim")}
        num_kv_heads = text.pop("num_global_key_value_heads", None)
        if num_kv_heads is not None:
            overrides["num_key_value_heads"] = num_kv_heads
        text["per_layer_config"] = {
            f"{index:02}": overrides for index, kind in enumerate(text["layer_types"]) if kind == FULL
        }
        assert read_model_spec(config) == read_model_spec(PUBLISHED[name])

    @pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("Gemma 3")])
    def test_rope_parameters_equal_the_older_fields(self, name: str) -> None:
        config = published(name)
        text = config.get("text_config", config)
        text.pop("rope_theta", None)
        text.pop("rope_local_base_freq", None)
        scaling = text.pop("rope_scaling") or {"rope_type": "default"}
        text["rope_parameters"] = {
            FULL: {"rope_theta": 1e6, **scaling},
            SLIDING: {"rope_theta": 1e4, "rope_type": "default"},
        }
        assert read_model_spec(config) == read_model_spec(PUBLISHED[name])

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_layer_types_may_be_left_out(self, name: str) -> None:
        """Every published pattern is the default one, but for E2B, whose groups are shorter."""
        config = published(name)
        config.get("text_config", config).pop("layer_types", None)
        same = read_model_spec(config) == read_model_spec(PUBLISHED[name])
        assert same == (name != "Gemma 4 E2B")

    def test_old_names_of_a_rope_type(self) -> None:
        config = published("Gemma 3 4B")
        config["text_config"]["rope_scaling"] = {"type": "linear", "factor": 8.0}
        assert read_model_spec(config) == read_model_spec(PUBLISHED["Gemma 3 4B"])

    def test_mlp_width_once_or_per_layer(self) -> None:
        config = published("Gemma 3n E4B")
        config["text_config"]["intermediate_size"] = 16_384
        assert read_model_spec(config) == read_model_spec(PUBLISHED["Gemma 3n E4B"])

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_the_model_type_names_the_architecture_where_the_list_is_missing(self, name: str) -> None:
        for config in (text_only(name), wrapped(name)):
            expected = read_model_spec(config)
            del config["architectures"]
            assert read_model_spec(config) == expected

    @pytest.mark.parametrize("name", PUBLISHED)
    def test_fields_nobody_knows_are_ignored(self, name: str) -> None:
        config = published(name)
        config["some_new_field"] = config.get("text_config", config)["another"] = {"x": [1]}
        assert read_model_spec(config) == read_model_spec(PUBLISHED[name])

    def test_ids_may_stand_at_either_level(self) -> None:
        config = published("Gemma 4 31B")
        config["text_config"]["eos_token_id"] = [1, 50]
        assert read_model_spec(config).eos_token_ids == (1, 106)
        del config["eos_token_id"]
        assert read_model_spec(config).eos_token_ids == (1, 50)
        del config["text_config"]["eos_token_id"]
        assert read_model_spec(config).eos_token_ids == (1,)


class TestTheLastLayer:
    @pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 4 12B", "Gemma 4 31B"])
    def test_gemma_4_ends_on_a_global_layer_whatever_the_file_says(self, name: str) -> None:
        config = published(name)
        config["text_config"]["layer_types"][-1] = SLIDING
        assert read_model_spec(config) == read_model_spec(PUBLISHED[name])

    @pytest.mark.parametrize("name", ["Gemma 3 27B", "Gemma 3 4B", "Gemma 3 270M"])
    def test_gemma_3_may_end_on_a_sliding_one(self, name: str) -> None:
        config = published(name)
        config.get("text_config", config)["layer_types"] = [SLIDING] * FACTS[name][0][1]
        assert read_model_spec(config).layers[-1].attention == "sliding"

    def test_27b_ends_on_two_sliding_layers(self) -> None:
        kinds = [layer.attention for layer in read_model_spec(PUBLISHED["Gemma 3 27B"]).layers]
        assert kinds[-3:] == ["global", "sliding", "sliding"]


class TestDefaults:
    def test_global_heads_are_512_wide_unless_said(self) -> None:
        config = published("Gemma 4 31B")
        config["text_config"].pop("global_head_dim")
        config["text_config"]["head_dim"] = 128
        dims = {layer.attention: layer.head_dim for layer in read_model_spec(config).layers}
        assert dims == {"sliding": 128, "global": 512}

    def test_global_kv_heads_count_only_where_values_are_keys(self) -> None:
        config = published("Gemma 4 31B")
        config["text_config"]["attention_k_eq_v"] = False
        assert {layer.num_kv_heads for layer in read_model_spec(config).layers} == {16}

    def test_unified_models_bring_other_defaults(self) -> None:
        spec = read_model_spec({"model_type": "gemma4_unified_text"})
        assert spec.max_positions == 262_144
        assert spec.layers[0].window == 1024
        assert spec.bidirectional_image_layers == ("sliding",)
        assert spec.per_layer_input is None

    def test_null_means_default(self) -> None:
        config = published("Gemma 3 4B")
        config["text_config"] |= {"head_dim": None, "vocab_size": None, "layer_types": None}
        assert read_model_spec(config) == read_model_spec(PUBLISHED["Gemma 3 4B"])

    def test_a_softcap_of_null_is_none_even_where_the_default_is_not(self) -> None:
        config = published("Gemma 3n E4B")
        config["text_config"]["final_logit_softcapping"] = None
        assert read_model_spec(config).logit_softcap is None

    @pytest.mark.parametrize("level", ["top", "text"])
    def test_untied_embeddings(self, level: str) -> None:
        config = published("Gemma 3 4B")
        (config if level == "top" else config["text_config"])["tie_word_embeddings"] = False
        assert not read_model_spec(config).tied_embeddings


@pytest.mark.parametrize("suffix", ["id", "index"])
def test_tokens_of_media_are_known_where_the_vocabulary_has_them(suffix: str) -> None:
    config = published("Gemma 4 E4B")
    assert read_model_spec({**config, "image_token_id": None}).media_token_ids == ()
    names = ("boi", "image", "eoi", "boa", "audio", "eoa", "video")
    ids = {f"{name}_token_{suffix}": 258_880 - place for place, name in enumerate(names)}
    found = read_model_spec({**config, "image_token_id": None, **ids, f"eoi_token_{suffix}": 10**6}).media_token_ids
    assert found == tuple(sorted(token_id for token_id in ids.values() if token_id != 258_878))


def test_every_spec_is_a_plain_value() -> None:
    """Equal, hashable, and safe to share: the runner keys caches by it."""
    for name in PUBLISHED:
        spec = read_model_spec(PUBLISHED[name])
        assert isinstance(spec, ModelSpec)
        assert hash(spec) == hash(read_model_spec(published(name)))
