"""Maps the tensors of a checkpoint to the parameters of what turns sound into rows.

Names are those of the published files of each family, without the `model.` that they begin with.
"""

from collections.abc import Iterator, Mapping

from facet.model.weight_map import TensorTarget, matrix_target, norm_target
from facet.sound_spec import ConformerSpec, ConformerTowerSpec, SampleEmbedderSpec, SoundSpec, UsmTowerSpec

_BOUNDS = ("input_min", "input_max", "output_min", "output_max")

# What the layers of a conformer are called in each family, and here.
_GEMMA4_NAMES = {
    "feed_forward1.pre_layer_norm": "first_mlp.norm",
    "feed_forward1.ffw_layer_1": "first_mlp.widen",
    "feed_forward1.ffw_layer_2": "first_mlp.narrow",
    "feed_forward1.post_layer_norm": "first_mlp.output_norm",
    "norm_pre_attn": "attention_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.post": "attention.output",
    "self_attn.relative_k_proj": "attention.distance_key",
    "self_attn.per_dim_scale": "attention.dim_scale",
    "norm_post_attn": "post_attention_norm",
    "lconv1d.pre_layer_norm": "convolution.norm",
    "lconv1d.linear_start": "convolution.input",
    "lconv1d.depthwise_conv1d": "convolution.kernel",
    "lconv1d.conv_norm": "convolution.output_norm",
    "lconv1d.linear_end": "convolution.output",
    "feed_forward2.pre_layer_norm": "second_mlp.norm",
    "feed_forward2.ffw_layer_1": "second_mlp.widen",
    "feed_forward2.ffw_layer_2": "second_mlp.narrow",
    "feed_forward2.post_layer_norm": "second_mlp.output_norm",
    "norm_out": "output_norm",
}
_RENAMED_IN_3N = {
    "feed_forward1": "ffw_layer_start",
    "feed_forward2": "ffw_layer_end",
    "norm_pre_attn": "attention.pre_attn_norm",
    "norm_post_attn": "attention.post_norm",
    "norm_out": "norm",
    "self_attn.post": "attention.post",
    "self_attn.relative_k_proj": "attention.attn.relative_position_embedding.pos_proj",
    "self_attn": "attention.attn",
    "lconv1d": "lconv1d",
}


def _in_3n(name: str) -> str:
    start = next(start for start in _RENAMED_IN_3N if name.startswith(start))
    return name.replace(start, _RENAMED_IN_3N[start], 1)


_GEMMA3N_NAMES = {_in_3n(name): ours for name, ours in _GEMMA4_NAMES.items()}


def sound_targets(spec: SoundSpec) -> tuple[TensorTarget, ...]:
    """Every tensor that is needed, in the order of the layers."""
    if isinstance(spec, ConformerTowerSpec):
        return tuple(_conformer_tower(spec))
    if isinstance(spec, UsmTowerSpec):
        return tuple(_usm_tower(spec))
    return tuple(_sample_embedder(spec))


def _sample_embedder(spec: SampleEmbedderSpec) -> Iterator[TensorTarget]:
    yield matrix_target("embed_audio.embedding_projection", spec.output_size, spec.frame_size, "output")


def _conformer_tower(spec: ConformerTowerSpec) -> Iterator[TensorTarget]:
    hidden = spec.conformer.hidden_size
    yield from _halving("audio_tower.subsample_conv_projection", ("layer0", "layer1"), spec)
    for index in range(spec.conformer.num_layers):
        yield from _layer(f"audio_tower.layers.{index}", _GEMMA4_NAMES, ".linear", index, spec.conformer)
    yield matrix_target("audio_tower.output_proj", spec.projected_size, hidden, "projection.product")
    yield TensorTarget(name="audio_tower.output_proj.bias", shape=(spec.projected_size,), place="projection.bias")
    yield matrix_target("embed_audio.embedding_projection", spec.output_size, spec.projected_size, "output")


def _usm_tower(spec: UsmTowerSpec) -> Iterator[TensorTarget]:
    hidden = spec.conformer.hidden_size
    yield from _halving("audio_tower.subsample_conv_projection", ("conv_0", "conv_1"), spec)
    for index in range(spec.conformer.num_layers):
        yield from _layer(f"audio_tower.conformer.{index}", _GEMMA3N_NAMES, "", index, spec.conformer)
    yield matrix_target("embed_audio.embedding", spec.table_size, hidden, "embedder.table")
    yield norm_target("embed_audio.hard_embedding_norm", hidden, "embedder.table_norm")
    yield norm_target("embed_audio.soft_embedding_norm", hidden, "embedder.norm")
    yield matrix_target("embed_audio.embedding_projection", spec.output_size, hidden, "embedder.projection")


def _halving(prefix: str, names: tuple[str, str], spec: ConformerTowerSpec | UsmTowerSpec) -> Iterator[TensorTarget]:
    first, second = spec.num_channels
    for name, num_inputs, num_outputs, ours in ((names[0], 1, first, "first"), (names[1], first, second, "second")):
        shape = (num_outputs, num_inputs, 3, 3)
        yield TensorTarget(name=f"{prefix}.{name}.conv.weight", shape=shape, place=f"{ours}.kernel")
        yield TensorTarget(name=f"{prefix}.{name}.norm.weight", shape=(num_outputs,), place=f"{ours}.norm_weight")
    width = second * (spec.num_bins // 4)
    yield matrix_target(f"{prefix}.input_proj_linear", spec.conformer.hidden_size, width, "input")


def _layer(
    prefix: str, names: Mapping[str, str], inside: str, index: int, spec: ConformerSpec
) -> Iterator[TensorTarget]:
    """`inside`: what the name of a product has behind it, where its bounds are stored beside it."""
    hidden = spec.hidden_size
    shapes = {"widen": (4 * hidden, hidden), "narrow": (hidden, 4 * hidden), "input": (2 * hidden, hidden)}
    for name, ours in names.items():
        stored, place, last = f"{prefix}.{name}", f"conformer.layers.{index}.{ours}", ours.rpartition(".")[2]
        if last.endswith("norm"):
            yield norm_target(stored, hidden, place)
        elif last == "dim_scale":
            yield TensorTarget(name=stored, shape=(spec.head_dim,), place=place)
        elif last == "kernel":
            yield TensorTarget(name=f"{stored}.weight", shape=(hidden, 1, spec.kernel_size), place=place)
        elif last == "distance_key":
            yield matrix_target(stored, hidden, hidden, place)
        else:
            yield matrix_target(f"{stored}{inside}", *shapes.get(last, (hidden, hidden)), f"{place}.product")
            for bound in _BOUNDS if spec.is_clipped else ():
                yield TensorTarget(name=f"{stored}.{bound}", shape=(), place=f"{place}.{bound}")
