"""Reads the layers of a text config, from fields for all of them, for a kind, or for one."""

from facet.errors import ConfigError
from facet.model.config_fields import ConfigFields, shown
from facet.model.family_defaults import FamilyDefaults
from facet.model_spec import AttentionKind, LayerSpec, MoeSpec, RotarySpec

MOST_LAYERS = 1_000  # the deepest Gemma has 62; specs hold one object per layer

_KINDS: dict[str, AttentionKind] = {"sliding_attention": "sliding", "full_attention": "global"}
_LAYER_OVERRIDES = {"head_dim", "num_key_value_heads"}
_OLD_ROPE = "config.json, rope_scaling"  # where the older spelling keeps what is not simply a theta


def read_layers(text: ConfigFields, defaults: FamilyDefaults) -> tuple[LayerSpec, ...]:
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
    """For each layer, the layer whose keys and values it reads: the last unshared layer of its kind, or its own
    (None)."""
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
