"""Maps the tensors of a checkpoint to the parameters of what turns pictures into rows.

Names are those of the published files of each family, without the `model.` that some of them begin with.
"""

from collections.abc import Iterator

from facet.model.mobile_net_weights import mobile_net_targets
from facet.model.weight_map import TensorTarget, matrix_target, norm_target
from facet.vision_spec import PatchEmbedderSpec, PatchTowerSpec, SquareTowerSpec, VisionSpec


def vision_targets(spec: VisionSpec) -> tuple[TensorTarget, ...]:
    """Every tensor that is needed, in the order of the layers."""
    if isinstance(spec, PatchTowerSpec):
        return tuple(_patch_tower(spec))
    if isinstance(spec, PatchEmbedderSpec):
        return tuple(_patch_embedder(spec))
    if isinstance(spec, SquareTowerSpec):
        return tuple(_square_tower(spec))
    return tuple(mobile_net_targets(spec))


def _patch_tower(spec: PatchTowerSpec) -> Iterator[TensorTarget]:
    tower, hidden, width = "vision_tower", spec.hidden_size, spec.num_heads * spec.head_dim
    yield matrix_target(f"{tower}.patch_embedder.input_proj", hidden, spec.patch_width, "input")
    yield TensorTarget(
        name=f"{tower}.patch_embedder.position_embedding_table",
        shape=(2, spec.num_positions, hidden),
        place="positions",
    )
    for index in range(spec.num_layers):
        stored, ours = f"{tower}.encoder.layers.{index}", f"layers.{index}"
        products = {
            ("self_attn.q_proj", "attention.query"): (width, hidden),
            ("self_attn.k_proj", "attention.key"): (width, hidden),
            ("self_attn.v_proj", "attention.value"): (width, hidden),
            ("self_attn.o_proj", "attention.output"): (hidden, width),
            ("mlp.gate_proj", "mlp.gate"): (spec.mlp_width, hidden),
            ("mlp.up_proj", "mlp.up"): (spec.mlp_width, hidden),
            ("mlp.down_proj", "mlp.down"): (hidden, spec.mlp_width),
        }
        for (name, place), (num_outputs, num_inputs) in products.items():
            yield matrix_target(f"{stored}.{name}.linear", num_outputs, num_inputs, f"{ours}.{place}.product")
            for bound in ("input_min", "input_max", "output_min", "output_max") if spec.is_clipped else ():
                yield TensorTarget(name=f"{stored}.{name}.{bound}", shape=(), place=f"{ours}.{place}.{bound}")
        yield norm_target(f"{stored}.self_attn.q_norm", spec.head_dim, f"{ours}.attention.query_norm")
        yield norm_target(f"{stored}.self_attn.k_norm", spec.head_dim, f"{ours}.attention.key_norm")
        yield norm_target(f"{stored}.input_layernorm", hidden, f"{ours}.input_norm")
        yield norm_target(f"{stored}.post_attention_layernorm", hidden, f"{ours}.post_attention_norm")
        yield norm_target(f"{stored}.pre_feedforward_layernorm", hidden, f"{ours}.pre_mlp_norm")
        yield norm_target(f"{stored}.post_feedforward_layernorm", hidden, f"{ours}.post_mlp_norm")
    if spec.is_standardized:
        yield TensorTarget(name=f"{tower}.std_bias", shape=(hidden,), place="standard_bias")
        yield TensorTarget(name=f"{tower}.std_scale", shape=(hidden,), place="standard_scale")
    yield matrix_target("embed_vision.embedding_projection", spec.output_size, hidden, "output")


def _patch_embedder(spec: PatchEmbedderSpec) -> Iterator[TensorTarget]:
    embedder, hidden = "vision_embedder", spec.hidden_size
    yield from _with_bias(norm_target(f"{embedder}.patch_ln1", spec.patch_width, "pixel_norm"))
    yield from _with_bias(matrix_target(f"{embedder}.patch_dense", hidden, spec.patch_width, "input.product"))
    yield from _with_bias(norm_target(f"{embedder}.patch_ln2", hidden, "patch_norm"))
    yield TensorTarget(name=f"{embedder}.pos_embedding", shape=(spec.num_positions, 2, hidden), place="positions")
    yield from _with_bias(norm_target(f"{embedder}.pos_norm", hidden, "place_norm"))
    yield matrix_target("embed_vision.embedding_projection", spec.output_size, hidden, "output")


def _square_tower(spec: SquareTowerSpec) -> Iterator[TensorTarget]:
    tower, projector, hidden = "vision_tower", "multi_modal_projector", spec.hidden_size
    kernel = TensorTarget(
        name=f"{tower}.embeddings.patch_embedding.weight",
        shape=(hidden, 3, spec.patch_size, spec.patch_size),
        place="input.product",
        layout="kernel",
    )
    yield from _with_bias(kernel)
    yield TensorTarget(
        name=f"{tower}.embeddings.position_embedding.weight",
        shape=(spec.patches_per_side**2, hidden),
        place="positions",
    )
    for index in range(spec.num_layers):
        stored, ours = f"{tower}.encoder.layers.{index}", f"layers.{index}"
        for name, place in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "output")):
            product = matrix_target(f"{stored}.self_attn.{name}", hidden, hidden, f"{ours}.{place}.product")
            yield from _with_bias(product)
        yield from _with_bias(matrix_target(f"{stored}.mlp.fc1", spec.mlp_width, hidden, f"{ours}.widen.product"))
        yield from _with_bias(matrix_target(f"{stored}.mlp.fc2", hidden, spec.mlp_width, f"{ours}.narrow.product"))
        yield from _with_bias(norm_target(f"{stored}.layer_norm1", hidden, f"{ours}.attention_norm"))
        yield from _with_bias(norm_target(f"{stored}.layer_norm2", hidden, f"{ours}.mlp_norm"))
    yield from _with_bias(norm_target(f"{tower}.post_layernorm", hidden, "norm"))
    yield norm_target(f"{projector}.mm_soft_emb_norm", hidden, "output_norm", offset=1.0)
    yield TensorTarget(
        name=f"{projector}.mm_input_projection_weight",
        shape=(hidden, spec.output_size),
        place="output",
        layout="transposed",
    )


def _with_bias(target: TensorTarget) -> Iterator[TensorTarget]:
    """The target, and the bias of the same product or norm."""
    yield target
    parent = target.place.rpartition(".")[0]
    yield TensorTarget(
        name=f"{target.name.removesuffix('.weight')}.bias",
        shape=target.shape[:1],
        place=f"{parent}.bias" if parent else "bias",
    )
