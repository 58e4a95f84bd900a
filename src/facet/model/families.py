"""From `config.json` to a `ModelSpec`: what the families leave out, spell differently, or mean by the same field.

Published configs omit whatever equals the default of the class that wrote them, so those defaults are part of the
format; they stand here as data. Everything Facet does not compute is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facet.errors import ConfigError, UnsupportedModelError
from facet.model.config_fields import ConfigFields, shown
from facet.model_spec import (
    AltUpSpec,
    AttentionKind,
    Family,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    PerLayerInputSpec,
    RotarySpec,
)

_KINDS: dict[str, AttentionKind] = {"sliding_attention": "sliding", "full_attention": "global"}
_LAYER_OVERRIDES = {"head_dim", "num_key_value_heads"}
_OLD_ROPE = "config.json, rope_scaling"  # where the older spelling keeps what is not simply a theta

MOST_LAYERS = 1_000  # the deepest Gemma has 62; specs hold one object per layer
MOST_POSITIONS = 2**24  # angles are float32, which tells neighbouring whole numbers apart up to here

# What only some families compute. Elsewhere these fields would be read and then silently mean nothing.
_ONLY_IN: dict[str, tuple[Family, ...]] = {
    "attention_k_eq_v": ("gemma4",),
    "enable_moe_block": ("gemma4",),
    "use_double_wide_mlp": ("gemma4",),
    "num_kv_shared_layers": ("gemma3n", "gemma4"),
    "hidden_size_per_layer_input": ("gemma3n", "gemma4"),
}
_FAMILY_NAMES: dict[Family, str] = {"gemma3": "Gemma 3", "gemma3n": "Gemma 3n", "gemma4": "Gemma 4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDefaults:
    """What a text config of this `model_type` means where it says nothing."""

    family: Family
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_layers: int = 30
    num_heads: int = 8
    num_kv_heads: int = 4
    window: int = 512
    vocab_size: int = 262_144
    max_positions: int = 131_072
    pattern: int = 6  # every so-many-th layer is global
    softcap: float | None = None
    num_kv_shared_layers: int = 0
    per_layer_input_width: int = 0
    bidirectional: str | None = None


_DEFAULTS: dict[str, FamilyDefaults] = {
    "gemma3_text": FamilyDefaults(family="gemma3", num_layers=26, window=4096, vocab_size=262_208),
    "gemma3n_text": FamilyDefaults(
        family="gemma3n",
        hidden_size=2048,
        intermediate_size=16_384,
        num_layers=35,
        num_kv_heads=2,
        vocab_size=262_400,
        max_positions=32_768,
        pattern=5,
        softcap=30.0,
        num_kv_shared_layers=15,
        per_layer_input_width=256,
    ),
    "gemma4_text": FamilyDefaults(family="gemma4", per_layer_input_width=256),
    "gemma4_unified_text": FamilyDefaults(family="gemma4", window=1024, max_positions=262_144, bidirectional="vision"),
}

# The architectures a checkpoint may name, and the text config inside. "ForConditionalGeneration" checkpoints wrap
# the decoder with vision and audio towers and keep its config under text_config.
_ARCHITECTURES = {
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma3nForCausalLM": "gemma3n_text",
    "Gemma3nForConditionalGeneration": "gemma3n_text",
    "Gemma4ForCausalLM": "gemma4_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Gemma4UnifiedForCausalLM": "gemma4_unified_text",
    "Gemma4UnifiedForConditionalGeneration": "gemma4_unified_text",
}


def supported_architectures() -> tuple[str, ...]:
    return tuple(_ARCHITECTURES)


def read_model_spec(config: Mapping[str, Any]) -> ModelSpec:
    """The text decoder that a `config.json` describes."""
    top = ConfigFields(config)
    architecture, model_type = _identify(top)
    text = top.section("text_config") if "text_config" in top else top
    defaults = _DEFAULTS[model_type]
    _refuse_what_we_do_not_compute(top, text)
    _refuse_what_the_family_has_not(text, defaults.family)

    bidirectional = text.raw("use_bidirectional_attention")
    if bidirectional is None and "use_bidirectional_attention" not in text.names():
        bidirectional = defaults.bidirectional
    image_layers: tuple[AttentionKind, ...] = ()
    if bidirectional == "vision":
        image_layers = ("sliding",)
    elif model_type == "gemma3_text" and "text_config" in top:
        image_layers = ("sliding", "global")

    per_layer_width = text.integer("hidden_size_per_layer_input", defaults.per_layer_input_width, least=0)
    vocab_size = text.integer("vocab_size", defaults.vocab_size)
    is_3n = defaults.family == "gemma3n"
    if is_3n and not per_layer_width:
        raise text.wrong("hidden_size_per_layer_input", "at least 1: every Gemma 3n has per-layer inputs")
    return ModelSpec(
        family=defaults.family,
        architecture=architecture,
        hidden_size=text.integer("hidden_size", defaults.hidden_size),
        vocab_size=vocab_size,
        layers=_read_layers(text, defaults),
        norm_eps=text.number("rms_norm_eps", 1e-6),
        norm_weights_offset=1.0 if defaults.family == "gemma3" else 0.0,
        has_layer_scalar=defaults.family == "gemma4",
        per_layer_input=PerLayerInputSpec(
            width=per_layer_width,
            vocab_size=text.integer("vocab_size_per_layer_input", 262_144),
        )
        if per_layer_width
        else None,
        altup=AltUpSpec(
            num_streams=text.integer("altup_num_inputs", 4, least=2),
            laurel_rank=text.integer("laurel_rank", 64),
        )
        if is_3n
        else None,
        logit_softcap=text.optional_number("final_logit_softcapping", defaults.softcap),
        tied_embeddings=text.boolean("tie_word_embeddings", top.boolean("tie_word_embeddings", True)),
        max_positions=text.integer("max_position_embeddings", defaults.max_positions, most=MOST_POSITIONS),
        bidirectional_image_layers=image_layers,
        bos_token_id=_first(text.token_ids("bos_token_id") or top.token_ids("bos_token_id"), 2),
        eos_token_ids=top.token_ids("eos_token_id") or text.token_ids("eos_token_id") or (1,),
        pad_token_id=_first(text.token_ids("pad_token_id") or top.token_ids("pad_token_id"), 0),
        checkpoint_dtype=_read_dtype(top, text),
    )


def _identify(top: ConfigFields) -> tuple[str, str]:
    """The architecture, by its name or by the model type, and the text config's type. They must agree."""
    named = top.raw("architectures")
    supported = ", ".join(_ARCHITECTURES)
    if named is not None and not (isinstance(named, list) and named and isinstance(named[0], str)):
        raise top.wrong("architectures", "a list of names")
    model_type = top.raw("model_type")
    if named is None:
        by_type = {
            kind if name.endswith("CausalLM") else kind.removesuffix("_text"): name
            for name, kind in _ARCHITECTURES.items()
        }
        if not isinstance(model_type, str) or model_type not in by_type:
            raise UnsupportedModelError(
                f"config.json names no architecture and its model_type is {shown(model_type)}. Supported: {supported}."
            )
        return by_type[model_type], _ARCHITECTURES[by_type[model_type]]
    architecture = named[0]
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"The architecture {shown(architecture)} is not one Facet computes. Supported: {supported}."
        )
    text_type = _ARCHITECTURES[architecture]
    for found in (model_type, top.section("text_config").raw("model_type")):
        if found is not None and found not in (text_type, text_type.removesuffix("_text")):
            raise ConfigError(
                f"config.json contradicts itself: architecture {architecture} beside model_type {shown(found)}."
            )
    return architecture, text_type


def _refuse_what_we_do_not_compute(top: ConfigFields, text: ConfigFields) -> None:
    for fields in (top, text):
        if "quantization_config" in fields:
            method = fields.section("quantization_config").raw("quant_method")
            raise ConfigError(
                f"The checkpoint is quantized ({shown(method)}), and this version of Facet reads unquantized weights "
                "only. Use the bf16 checkpoint of the same model."
            )
    if text.text("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise text.wrong("hidden_activation", "gelu_pytorch_tanh, the only activation of the family")
    if text.boolean("attention_bias"):
        raise text.wrong("attention_bias", "false: no published Gemma has attention biases")
    if "attn_logit_softcapping" in text:
        raise text.wrong("attn_logit_softcapping", "null: Gemma 3 and later do not cap attention logits")
    if text.raw("use_bidirectional_attention") not in (None, False, "vision"):
        raise text.wrong("use_bidirectional_attention", "null, false or 'vision': encoders are not served")
    if text.integer("altup_active_idx", 0, least=0) != 0:
        raise text.wrong("altup_active_idx", "0")
    if not text.boolean("altup_correct_scale", True):
        raise text.wrong("altup_correct_scale", "true")


def _refuse_what_the_family_has_not(text: ConfigFields, family: Family) -> None:
    for name, families in _ONLY_IN.items():
        if family not in families and text.raw(name):
            raise text.wrong(name, f"absent: {_FAMILY_NAMES[family]} has nothing of the kind")


def _read_layers(text: ConfigFields, defaults: FamilyDefaults) -> tuple[LayerSpec, ...]:
    num_layers = text.integer("num_hidden_layers", defaults.num_layers, most=MOST_LAYERS)
    kinds = _read_kinds(text, defaults, num_layers)
    num_heads = text.integer("num_attention_heads", defaults.num_heads)
    values_are_keys = text.boolean("attention_k_eq_v")
    scale = text.number("query_pre_attn_scalar", 256.0) ** -0.5 if defaults.family == "gemma3" else 1.0
    window = text.integer("sliding_window", defaults.window)
    rotary = _read_rotary(text, defaults)
    sharing = _read_kv_sharing(text, defaults, kinds)
    widths = text.integers_per_layer("intermediate_size", num_layers, defaults.intermediate_size)
    double_wide = text.boolean("use_double_wide_mlp")
    sparsity = _read_sparsity(text, defaults, num_layers)
    moe = _read_moe(text)
    heads = _read_head_shapes(text, defaults, kinds)

    layers = []
    for index, kind in enumerate(kinds):
        head_dim, num_kv_heads = heads[index]
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"Layer {index} has {num_heads} query heads and {num_kv_heads} key-value heads; "
                "the first must be a multiple of the second."
            )
        source = sharing[index]
        if source is not None and heads[source] != heads[index]:
            raise ConfigError(f"Layer {index} reads the keys of layer {source}, whose heads have another shape.")
        layers.append(
            LayerSpec(
                index=index,
                attention=kind,
                window=window if kind == "sliding" else None,
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                attention_scale=scale,
                rotary=rotary[kind],
                kv_from_layer=source,
                values_are_keys=values_are_keys and kind == "global",
                values_are_normed=defaults.family != "gemma3",
                mlp_width=widths[index] * (2 if double_wide and source is not None else 1),
                mlp_sparsity=sparsity[index],
                moe=moe,
            )
        )
    return tuple(layers)


def _read_kinds(text: ConfigFields, defaults: FamilyDefaults, num_layers: int) -> list[AttentionKind]:
    named = text.raw("layer_types")
    if named is None:
        pattern = text.integer("sliding_window_pattern", defaults.pattern)
        named = ["sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(num_layers)]
    if not isinstance(named, list) or any(not isinstance(name, str) or name not in _KINDS for name in named):
        raise text.wrong("layer_types", f"a list of {' and '.join(_KINDS)}")
    if len(named) != num_layers:
        raise ConfigError(f"layer_types has {len(named)} entries, but num_hidden_layers is {num_layers}.")
    kinds = [_KINDS[name] for name in named]
    if defaults.family == "gemma4":
        kinds[-1] = "global"  # whatever the file says: every Gemma 4 ends on a global layer
    return kinds


def _read_head_shapes(
    text: ConfigFields, defaults: FamilyDefaults, kinds: list[AttentionKind]
) -> list[tuple[int, int]]:
    """(head_dim, num_kv_heads) per layer. Two spellings: global_* fields, or per_layer_config with overrides."""
    head_dim = text.integer("head_dim", 256)
    num_kv_heads = text.integer("num_key_value_heads", defaults.num_kv_heads)
    global_head_dim, num_global_kv_heads = head_dim, num_kv_heads
    if defaults.family == "gemma4" and "per_layer_config" not in text:
        global_head_dim = text.integer("global_head_dim", 512)  # not derived from head_dim
        if text.boolean("attention_k_eq_v"):  # the field has no effect without
            num_global_kv_heads = text.integer("num_global_key_value_heads", num_kv_heads)
    shapes = [
        (head_dim, num_kv_heads) if kind == "sliding" else (global_head_dim, num_global_kv_heads) for kind in kinds
    ]
    overrides = text.section("per_layer_config")
    for name in overrides.names():
        if not name.isdecimal() or int(name) >= len(kinds):
            raise overrides.wrong(name, f"under the index of one of the {len(kinds)} layers")
        layer = overrides.section(name)
        if unknown := set(layer.names()) - _LAYER_OVERRIDES:
            raise ConfigError(
                f"per_layer_config of layer {name} overrides {shown(sorted(unknown))}; Facet knows head_dim "
                "and num_key_value_heads there."
            )
        dim, count = shapes[int(name)]
        shapes[int(name)] = (layer.integer("head_dim", dim), layer.integer("num_key_value_heads", count))
    for dim, _ in shapes:
        if dim % 2:
            raise ConfigError(f"A head dimension of {dim} cannot be rotated in pairs; it must be even.")
    for kind in dict.fromkeys(kinds):
        # One table of angles serves all layers of a kind.
        dims = sorted({dim for (dim, _), other in zip(shapes, kinds, strict=True) if other == kind})
        if len(dims) > 1:
            raise ConfigError(
                f"The {kind} layers have a head_dim of {shown(dims)}, but one must serve all of them. Check head_dim, "
                "global_head_dim and per_layer_config."
            )
    return shapes


def _read_kv_sharing(text: ConfigFields, defaults: FamilyDefaults, kinds: list[AttentionKind]) -> list[int | None]:
    """For each layer, whose keys and values it reads: the last unshared layer of its kind, or its own (None)."""
    num_shared = text.integer("num_kv_shared_layers", defaults.num_kv_shared_layers, least=0)
    first = len(kinds) - num_shared
    if first < 1:
        raise ConfigError(
            f"num_kv_shared_layers is {num_shared}, but of {len(kinds)} layers at least one must own its keys."
        )
    sources: list[int | None] = [None] * first
    for index in range(first, len(kinds)):
        owners = [owner for owner in range(first) if kinds[owner] == kinds[index]]
        if not owners:
            raise ConfigError(
                f"Layer {index} shares the keys of an earlier {kinds[index]} layer, but none below {first} exists."
            )
        sources.append(owners[-1])
    return sources


def _read_rotary(text: ConfigFields, defaults: FamilyDefaults) -> dict[AttentionKind, RotarySpec]:
    old_spelling = {
        "sliding_attention": {"rope_theta": text.number("rope_local_base_freq", 1e4)},
        "full_attention": {"rope_theta": text.number("rope_theta", 1e6)} | text.section("rope_scaling").values(),
    }
    if defaults.family == "gemma4":
        old_spelling["full_attention"] |= {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    parameters = text.section("rope_parameters")
    if unknown := set(parameters.names()) - set(_KINDS):
        raise ConfigError(f"rope_parameters has {shown(sorted(unknown))}; known: {' and '.join(_KINDS)}.")
    result: dict[AttentionKind, RotarySpec] = {}
    for name, kind in _KINDS.items():
        fields = parameters.section(name) if name in parameters else ConfigFields(old_spelling[name], _OLD_ROPE)
        theta = fields.number("rope_theta", old_spelling[name]["rope_theta"])
        rope_type = fields.text("rope_type", fields.text("type", "default"))
        if rope_type not in ("default", "linear", "proportional"):
            raise ConfigError(
                f"rope_type {shown(rope_type)} is not used by any Gemma; known: default, linear, proportional."
            )
        fraction = fields.number("partial_rotary_factor", 1.0)
        if fraction > 1 or (fraction < 1 and rope_type != "proportional"):
            raise fields.wrong("partial_rotary_factor", "1 for this rope_type, or at most 1 with 'proportional'")
        factor = 1.0 if rope_type == "default" else fields.number("factor", None if rope_type == "linear" else 1.0)
        result[kind] = RotarySpec(theta=theta, rotated_fraction=fraction, factor=factor)
    return result


def _read_sparsity(text: ConfigFields, defaults: FamilyDefaults, num_layers: int) -> list[float]:
    if defaults.family != "gemma3n":
        return [0.0] * num_layers
    if "activation_sparsity_pattern" not in text:
        num_sparse = 10 if num_layers > 10 else 0
        return [0.95] * num_sparse + [0.0] * (num_layers - num_sparse)
    return text.fractions_per_layer("activation_sparsity_pattern", num_layers)


def _read_moe(text: ConfigFields) -> MoeSpec | None:
    if not text.boolean("enable_moe_block"):
        return None
    moe = MoeSpec(
        num_experts=text.integer("num_experts"),
        num_chosen=text.integer("top_k_experts"),
        width=text.integer("moe_intermediate_size"),
    )
    if moe.num_chosen > moe.num_experts:
        raise ConfigError(f"top_k_experts is {moe.num_chosen}, but there are only {moe.num_experts} experts.")
    return moe


def _read_dtype(top: ConfigFields, text: ConfigFields) -> str | None:
    for fields in (top, text):
        for name in ("dtype", "torch_dtype"):
            if name in fields:
                return fields.text(name, "").removeprefix("torch.")
    return None


def _first(ids: tuple[int, ...], default: int) -> int:
    return ids[0] if ids else default
