"""The definition of the step between projection and attention: norms, rotation and a write to the cache."""

from typing import TypedDict

from torch import Tensor

from facet.kernels.paged_attention.cache import HeadShape, LayerCache
from facet.kernels.paged_attention.reference import write_keys_and_values
from facet.kernels.rms_norm import rms_norm
from facet.kernels.rotary import apply_rotary


class Arguments(TypedDict):
    """What `prepare_heads` takes by name."""

    query_weight: Tensor
    key_weight: Tensor | None
    eps: float
    cos_sin: Tensor
    cache: LayerCache | None
    write_blocks: Tensor
    write_slots: Tensor
    values_are_normed: bool


def prepare_heads(
    projected: Tensor,
    heads: HeadShape,
    *,
    query_weight: Tensor,
    key_weight: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    cache: LayerCache | None,
    write_blocks: Tensor,
    write_slots: Tensor,
    values_are_normed: bool,
) -> Tensor:
    """See the package. Every step rounds to the dtype of the activations."""
    vectors = projected.reshape(projected.shape[0], projected.shape[1] // heads.head_dim, heads.head_dim)
    num_before_values = heads.num_heads + heads.num_kv_heads
    raw_queries, raw_keys = vectors[:, : heads.num_heads], vectors[:, heads.num_heads : num_before_values]
    raw_values = vectors[:, num_before_values:]
    queries = apply_rotary(rms_norm(raw_queries, query_weight, eps), cos_sin)
    if cache is None:
        return queries
    if raw_values.shape[1] == 0:
        raw_values = raw_keys
    values = rms_norm(raw_values, None, eps) if values_are_normed else raw_values
    if cache.values is None:
        write_keys_and_values(cache, values, None, write_blocks, write_slots)
    else:
        keys = apply_rotary(rms_norm(raw_keys, key_weight, eps), cos_sin)
        write_keys_and_values(cache, keys, values, write_blocks, write_slots)
    return queries
