"""Maps the tensors of a Gemma 3n checkpoint to the parameters of its vision tower."""

from collections.abc import Iterator

from facet.model.weight_map import TensorTarget, matrix_target, norm_target
from facet.vision_spec import AttentionBlockSpec, EdgeBlockSpec, InvertedBlockSpec, MobileNetSpec

_TOWER = "vision_tower.timm_model"


def mobile_net_targets(spec: MobileNetSpec) -> Iterator[TensorTarget]:
    """Every tensor that is needed, in the order of the blocks."""
    stem = f"{_TOWER}.conv_stem"
    yield _kernel(f"{stem}.conv", (spec.stem_width, 3, 3, 3), "stem")
    yield TensorTarget(name=f"{stem}.conv.bias", shape=(spec.stem_width,), place="stem_bias")
    yield norm_target(f"{stem}.bn", spec.stem_width, "stem_norm")
    for stage, blocks in enumerate(spec.stages):
        for index, block in enumerate(blocks):
            stored, ours = f"{_TOWER}.blocks.{stage}.{index}", f"stages.{stage}.{index}"
            if isinstance(block, EdgeBlockSpec):
                yield from _edge_block(block, stored, ours)
            elif isinstance(block, InvertedBlockSpec):
                yield from _inverted_block(block, stored, ours)
            else:
                yield from _attention_block(block, stored, ours)
    yield from _inverted_block(spec.fusion, f"{_TOWER}.msfa.ffn", "fusion")
    width = spec.fusion.num_outputs
    yield norm_target(f"{_TOWER}.msfa.norm", width, "fusion_norm")
    yield matrix_target("embed_vision.embedding", len(spec.table_ids), width, "embedder.table")
    yield norm_target("embed_vision.hard_embedding_norm", width, "embedder.table_norm")
    yield norm_target("embed_vision.soft_embedding_norm", width, "embedder.norm")
    yield matrix_target("embed_vision.embedding_projection", spec.output_size, width, "embedder.projection")


def _edge_block(block: EdgeBlockSpec, stored: str, ours: str) -> Iterator[TensorTarget]:
    size = block.kernel_size
    yield _kernel(f"{stored}.conv_exp", (block.width, block.num_inputs, size, size), f"{ours}.widen")
    yield norm_target(f"{stored}.bn1", block.width, f"{ours}.widen_norm")
    yield _product(f"{stored}.conv_pwl", block.num_outputs, block.width, f"{ours}.narrow")
    yield norm_target(f"{stored}.bn2", block.num_outputs, f"{ours}.narrow_norm")


def _inverted_block(block: InvertedBlockSpec, stored: str, ours: str) -> Iterator[TensorTarget]:
    if size := block.start_kernel_size:
        yield _kernel(f"{stored}.dw_start.conv", (block.num_inputs, 1, size, size), f"{ours}.start")
        yield norm_target(f"{stored}.dw_start.bn", block.num_inputs, f"{ours}.start_norm")
    yield _product(f"{stored}.pw_exp.conv", block.width, block.num_inputs, f"{ours}.widen")
    yield norm_target(f"{stored}.pw_exp.bn", block.width, f"{ours}.widen_norm")
    if size := block.middle_kernel_size:
        yield _kernel(f"{stored}.dw_mid.conv", (block.width, 1, size, size), f"{ours}.middle")
        yield norm_target(f"{stored}.dw_mid.bn", block.width, f"{ours}.middle_norm")
    yield _product(f"{stored}.pw_proj.conv", block.num_outputs, block.width, f"{ours}.narrow")
    yield norm_target(f"{stored}.pw_proj.bn", block.num_outputs, f"{ours}.narrow_norm")
    if block.is_scaled:
        yield TensorTarget(name=f"{stored}.layer_scale.gamma", shape=(block.num_outputs,), place=f"{ours}.scale")


def _attention_block(block: AttentionBlockSpec, stored: str, ours: str) -> Iterator[TensorTarget]:
    channels, size, width = block.num_channels, block.kernel_size, block.num_heads * block.head_dim
    yield norm_target(f"{stored}.norm", channels, f"{ours}.norm")
    yield _product(f"{stored}.attn.query.proj", width, channels, f"{ours}.query")
    for name in ("key", "value"):
        if block.key_stride > 1:
            yield _kernel(f"{stored}.attn.{name}.down_conv", (channels, 1, size, size), f"{ours}.{name}.shrink")
            yield norm_target(f"{stored}.attn.{name}.norm", channels, f"{ours}.{name}.norm")
        yield _product(f"{stored}.attn.{name}.proj", block.head_dim, channels, f"{ours}.{name}.projection")
    yield _product(f"{stored}.attn.output.proj", channels, width, f"{ours}.output")
    yield TensorTarget(name=f"{stored}.layer_scale.gamma", shape=(channels,), place=f"{ours}.scale")


def _kernel(name: str, shape: tuple[int, ...], place: str) -> TensorTarget:
    return TensorTarget(name=f"{name}.weight", shape=shape, place=f"{place}.kernel")


def _product(name: str, num_outputs: int, num_inputs: int, place: str) -> TensorTarget:
    """A convolution of single pixels."""
    return TensorTarget(name=f"{name}.weight", shape=(num_outputs, num_inputs, 1, 1), place=place, layout="kernel")
