"""Maps the tensors of a checkpoint to parameters: a pure function from spec to names, shapes and places.

The map is compared with the files before anything is loaded, and gives the size of a model's weights without any
files. Names are those inside the decoder; the prefix in front of them differs between
text-only and multimodal checkpoints and is found by `checkpoint.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from facet.model_spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTarget:
    """One checkpoint tensor: what it is called, its shape, and what it fills."""

    name: str
    shape: tuple[int, ...]
    place: str  # a parameter, or a `Linear`
    part: int | None = None  # of the `Linear`; None: all of it
    offset: float = 0.0  # added to every value: Gemma 3 stores norm weights less one
    # As the place holds it; a matrix [inputs, outputs]; or the kernel of a convolution, each of its outputs a row.
    layout: Literal["as placed", "transposed", "kernel"] = "as placed"

    @property
    def num_values(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def is_norm(self) -> bool:
        """The weight of a norm, which is kept in float32 whatever the type of the model."""
        return self.place.endswith("norm.weight")


PER_LAYER_TABLE = "per_layer_inputs.table"  # the place of the only table that may stay in the host's memory


def tensor_targets(spec: ModelSpec) -> tuple[TensorTarget, ...]:
    """Every tensor the decoder needs, in the order of the layers."""
    return tuple(_decoder_targets(spec))


def is_unused(spec: ModelSpec, name: str) -> bool:
    """Whether checkpoints of this model may hold `name` although nothing reads it.

    Published files keep keys and values for layers that read another layer's, and some repeat a tied head.
    """
    parts = name.split(".")
    if parts[0] == "lm_head":
        return spec.tied_embeddings
    if parts[-1] == "inv_freq":
        return True  # angles that some exports store; they are computed here
    if len(parts) >= 4 and parts[0] == "layers" and parts[1].isdecimal() and int(parts[1]) < spec.num_layers:
        layer = spec.layers[int(parts[1])]
        return parts[2] == "self_attn" and (
            (not layer.owns_kv and parts[3] in ("k_proj", "v_proj", "k_norm")) or parts[-1] in _CACHE_SCALES
        )
    return False


def is_cache_scale(name: str) -> bool:
    """Whether this is a scale for keys or values in a cache of eight bits, as quantized checkpoints may have them."""
    return ".self_attn." in name and name.rpartition(".")[2] in _CACHE_SCALES


_CACHE_SCALES = ("k_cache_scale", "v_cache_scale", "q_scale", "k_scale", "v_scale")


def _decoder_targets(spec: ModelSpec) -> Iterator[TensorTarget]:
    hidden, offset = spec.hidden_size, spec.norm_weights_offset
    yield TensorTarget(name="embed_tokens.weight", shape=(spec.vocab_size, hidden), place="embedding")
    if not spec.tied_embeddings:
        yield TensorTarget(name="lm_head.weight", shape=(spec.vocab_size, hidden), place="head")
    if spec.per_layer_input is not None:
        columns, width = spec.num_layers * spec.per_layer_input.width, spec.per_layer_input.width
        yield TensorTarget(
            name="embed_tokens_per_layer.weight",
            shape=(spec.per_layer_input.vocab_size, columns),
            place=PER_LAYER_TABLE,
        )
        yield matrix_target("per_layer_model_projection", columns, hidden, "per_layer_inputs.projection")
        yield norm_target("per_layer_projection_norm", width, "per_layer_inputs.norm", offset)
    if spec.altup is not None:
        for stream in range(spec.altup.num_streams - 1):
            yield matrix_target(f"altup_projections.{stream}", hidden, hidden, f"streams.expand_projections.{stream}")
            yield matrix_target(
                f"altup_unembed_projections.{stream}", hidden, hidden, f"streams.merge_projections.{stream}"
            )
    for layer in spec.layers:
        prefix = f"layers.{layer.index}"
        yield from _attention_targets(prefix, layer, hidden, offset)
        yield from _mlp_targets(prefix, layer, hidden)
        for stored, ours in _LAYER_NORMS:
            yield norm_target(f"{prefix}.{stored}", hidden, f"{prefix}.{ours}", offset)
        if layer.moe is not None:
            yield from _moe_targets(prefix, layer, hidden, offset)
        if spec.altup is not None:
            yield from _altup_targets(prefix, spec.altup.num_streams, spec.altup.laurel_rank, hidden)
        if spec.per_layer_input is not None:
            width = spec.per_layer_input.width
            yield matrix_target(f"{prefix}.per_layer_input_gate", width, hidden, f"{prefix}.per_layer_gate.gate")
            yield matrix_target(f"{prefix}.per_layer_projection", hidden, width, f"{prefix}.per_layer_gate.projection")
            yield norm_target(f"{prefix}.post_per_layer_input_norm", hidden, f"{prefix}.per_layer_gate.norm", offset)
        if spec.has_layer_scalar:
            yield TensorTarget(name=f"{prefix}.layer_scalar", shape=(1,), place=f"{prefix}.layer_scalar")
    yield norm_target("norm", hidden, "norm", offset)


_LAYER_NORMS = (
    ("input_layernorm", "input_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "pre_mlp_norm"),
    ("post_feedforward_layernorm", "post_mlp_norm"),
)


def _attention_targets(prefix: str, layer: LayerSpec, hidden: int, offset: float) -> Iterator[TensorTarget]:
    stored, ours = f"{prefix}.self_attn", f"{prefix}.attention"
    widths = {"q_proj": layer.query_width}
    if layer.owns_kv:
        widths["k_proj"] = layer.kv_width
        if not layer.values_are_keys:
            widths["v_proj"] = layer.kv_width
        yield norm_target(f"{stored}.k_norm", layer.head_dim, f"{ours}.key_norm", offset)
    for part, (name, width) in enumerate(widths.items()):
        yield matrix_target(f"{stored}.{name}", width, hidden, f"{ours}.projections", part)
    yield norm_target(f"{stored}.q_norm", layer.head_dim, f"{ours}.query_norm", offset)
    yield matrix_target(f"{stored}.o_proj", hidden, layer.query_width, f"{ours}.output")


def _mlp_targets(prefix: str, layer: LayerSpec, hidden: int) -> Iterator[TensorTarget]:
    width = layer.mlp_width
    yield matrix_target(f"{prefix}.mlp.gate_proj", width, hidden, f"{prefix}.mlp.gate_up", 0)
    yield matrix_target(f"{prefix}.mlp.up_proj", width, hidden, f"{prefix}.mlp.gate_up", 1)
    yield matrix_target(f"{prefix}.mlp.down_proj", hidden, width, f"{prefix}.mlp.down")


def _moe_targets(prefix: str, layer: LayerSpec, hidden: int, offset: float) -> Iterator[TensorTarget]:
    assert layer.moe is not None
    experts, width, ours = layer.moe.num_experts, layer.moe.width, f"{prefix}.experts"
    held = layer.moe.num_held
    yield TensorTarget(name=f"{prefix}.router.scale", shape=(hidden,), place=f"{ours}.router_scale")
    yield TensorTarget(name=f"{prefix}.router.per_expert_scale", shape=(experts,), place=f"{ours}.expert_scale")
    yield matrix_target(f"{prefix}.router.proj", experts, hidden, f"{ours}.router")
    yield TensorTarget(name=f"{prefix}.experts.gate_up_proj", shape=(held, 2 * width, hidden), place=f"{ours}.gate_up")
    yield TensorTarget(name=f"{prefix}.experts.down_proj", shape=(held, hidden, width), place=f"{ours}.down")
    yield norm_target(f"{prefix}.pre_feedforward_layernorm_2", hidden, f"{ours}.input_norm", offset)
    yield norm_target(f"{prefix}.post_feedforward_layernorm_1", hidden, f"{prefix}.dense_branch_norm", offset)
    yield norm_target(f"{prefix}.post_feedforward_layernorm_2", hidden, f"{prefix}.expert_branch_norm", offset)


def _altup_targets(prefix: str, num_streams: int, rank: int, hidden: int) -> Iterator[TensorTarget]:
    altup = f"{prefix}.altup"
    yield TensorTarget(name=f"{altup}.correct_output_scale", shape=(hidden,), place=f"{prefix}.output_scale")
    yield matrix_target(f"{altup}.correction_coefs", num_streams, num_streams, f"{prefix}.correction")
    yield matrix_target(f"{altup}.prediction_coefs", num_streams**2, num_streams, f"{prefix}.prediction")
    yield matrix_target(f"{altup}.modality_router", num_streams, hidden, f"{prefix}.stream_router.router")
    yield norm_target(f"{altup}.router_norm", hidden, f"{prefix}.stream_router.norm", 0.0)
    yield matrix_target(f"{prefix}.laurel.linear_left", rank, hidden, f"{prefix}.laurel.left")
    yield matrix_target(f"{prefix}.laurel.linear_right", hidden, rank, f"{prefix}.laurel.right")
    yield norm_target(f"{prefix}.laurel.post_laurel_norm", hidden, f"{prefix}.laurel.norm", 0.0)


def matrix_target(name: str, num_outputs: int, num_inputs: int, place: str, part: int | None = None) -> TensorTarget:
    return TensorTarget(name=f"{name}.weight", shape=(num_outputs, num_inputs), place=place, part=part)


def norm_target(name: str, width: int, place: str, offset: float = 0.0) -> TensorTarget:
    return TensorTarget(name=f"{name}.weight", shape=(width,), place=f"{place}.weight", offset=offset)
