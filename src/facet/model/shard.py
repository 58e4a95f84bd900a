"""Says what each rank of a model holds, as tensor parallelism divides it: pure rules from specs to slices.

Heads, the columns of MLPs and experts, and the rows of embeddings are divided. Where there are fewer key heads than
ranks, each rank keeps one whole: several then hold the same. Experts whose columns cannot be divided, since groups of
quantized inputs would be cut, are divided whole. Everything else is on every rank: norms, routers, per-layer gates, the
low-rank path and the streams of Gemma 3n.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from facet.errors import ConfigError
from facet.matrix_format import MatrixFormat
from facet.model.weight_map import TensorTarget, tensor_targets
from facet.model_spec import LayerSpec, ModelSpec, MoeSpec
from facet.ranks import Rank

_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)  # that a refusal may recommend
_UNQUANTIZED: Mapping[str, MatrixFormat] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Cut:
    """The slices of a tensor that a rank holds, one behind the other along one axis, which counts from the last."""

    axis: int
    slices: tuple[slice, ...]

    @property
    def is_of_inputs(self) -> bool:
        return self.axis == -1

    @property
    def is_of_experts(self) -> bool:
        return self.axis == -3


def shard_of(spec: ModelSpec, size: int, formats: Mapping[str, MatrixFormat] = _UNQUANTIZED) -> ModelSpec:
    """The share of each of `size` ranks. Refused where it would not be equal, with the sizes that would do.

    `formats` are those of the whole model's quantized matrices, by name.
    """
    if size < 1:
        raise ConfigError(f"--tensor-parallel-size is {size}, but must be 1 or more.")
    try:
        return _shard_of(spec, size, formats)
    except _Indivisible as error:
        fitting = [str(other) for other in _SIZES if _divides(spec, other, formats)]
        raise ConfigError(
            f"--tensor-parallel-size {size} does not divide {error}. Sizes that do: {', '.join(fitting)}."
        ) from None


def cut_of(whole: TensorTarget, share: TensorTarget, rank: Rank) -> Cut | None:
    """The part of a tensor that belongs to a rank, from its shape and that of the rank's share. None: all of it."""
    if whole.shape == share.shape:
        return None
    (axis,) = (axis for axis in range(len(whole.shape)) if whole.shape[axis] != share.shape[axis])
    # The experts' gates and what they open are two matrices in one, and are cut alike.
    num_parts = 2 if whole.name.endswith("experts.gate_up_proj") and axis == 1 else 1
    total, size = whole.shape[axis] // num_parts, share.shape[axis] // num_parts
    # Where there are fewer shares than ranks, neighbours have the same one.
    first = rank.index * (total // size) // rank.size * size
    slices = tuple(slice(part * total + first, part * total + first + size) for part in range(num_parts))
    return Cut(axis - len(whole.shape), slices)


def division_line(spec: ModelSpec, share: ModelSpec, size: int, *, has_towers: bool = False) -> str:
    """A line for people: what ranks divide and what each of them has whole; empty where one has everything."""
    if size == 1:
        return ""
    divided = ["heads", "MLPs", "embeddings and the KV cache"]
    whole = ["norms"]
    moe = share.layers[0].moe
    if moe is not None:
        divided.insert(2, "experts" if moe.num_holders == 1 else f"experts ({moe.num_held} whole ones each)")
        whole.append("routers")
    if spec.per_layer_input is not None:
        whole.append("per-layer gates")
    if spec.altup is not None:
        whole.append("streams and low-rank paths")
    if has_towers:
        whole.append("towers for media")
    kinds = {layer.attention: (layer.num_kv_heads, part) for layer, part in zip(spec.layers, share.layers, strict=True)}
    for kind, (num_kv_heads, part) in kinds.items():
        if part.num_kv_heads * size > num_kv_heads:
            copies = part.num_kv_heads * size // num_kv_heads
            whole.append(f"each key head of {kind} layers on {copies} ranks")
    return f"Tensor parallel over {size} ranks: {', '.join(divided)} are divided; repeated: {', '.join(whole)}."


class _Indivisible(Exception):
    """What it is that ranks cannot divide."""


def _divides(spec: ModelSpec, size: int, formats: Mapping[str, MatrixFormat]) -> bool:
    try:
        _shard_of(spec, size, formats)
    except _Indivisible:
        return False
    return True


def _shard_of(spec: ModelSpec, size: int, formats: Mapping[str, MatrixFormat]) -> ModelSpec:
    if size == 1:
        return spec

    def share(experts_whole: bool) -> ModelSpec:
        per_layer_input = spec.per_layer_input
        if per_layer_input is not None:
            num_ids = _divided(per_layer_input.vocab_size, size, "rows of the per-layer embedding")
            per_layer_input = replace(per_layer_input, vocab_size=num_ids)
        return replace(
            spec,
            vocab_size=_divided(spec.vocab_size, size, "tokens of the vocabulary"),
            per_layer_input=per_layer_input,
            layers=tuple(_share(layer, size, experts_whole=experts_whole) for layer in spec.layers),
        )

    try:
        return _checked(spec, share(False), formats)
    except _Indivisible:
        if not any(layer.moe for layer in spec.layers):
            raise
        return _checked(spec, share(True), formats)


def _share(layer: LayerSpec, size: int, *, experts_whole: bool) -> LayerSpec:
    # Every rank has a whole number of query heads for each of its key heads.
    num_kv_heads = 1 if size % layer.num_kv_heads == 0 else _divided(layer.num_kv_heads, size, "key heads", layer)
    return replace(
        layer,
        num_heads=_divided(layer.num_heads, size, "heads", layer),
        num_kv_heads=num_kv_heads,
        mlp_width=_divided(layer.mlp_width, size, "columns of the MLP", layer),
        moe=None if layer.moe is None else _share_of_experts(layer.moe, size, layer, whole=experts_whole),
    )


def _share_of_experts(moe: MoeSpec, size: int, layer: LayerSpec, *, whole: bool) -> MoeSpec:
    if whole:
        _divided(moe.num_experts, size, "experts", layer)
        return replace(moe, num_holders=size)
    return replace(moe, width=_divided(moe.width, size, "columns of the experts", layer))


def _divided(count: int, size: int, what: str, layer: LayerSpec | None = None) -> int:
    if count % size:
        raise _Indivisible(f"the {count} {what}{'' if layer is None else f' of layer {layer.index}'}")
    return count // size


def _checked(spec: ModelSpec, share: ModelSpec, formats: Mapping[str, MatrixFormat]) -> ModelSpec:
    """Raises where a rank would have parts of groups of inputs, or inputs in an order that only the whole has."""
    if not formats:
        return share
    for whole, part in zip(tensor_targets(spec), tensor_targets(share), strict=True):
        format = formats.get(whole.name)
        if format is None or whole.shape[-1] == part.shape[-1]:
            continue
        if not format.divides_into(part.shape[-1]):
            raise _Indivisible(f"the {whole.shape[-1]} inputs of {whole.name} ({format.line})")
    return share
