"""Makes the spec of a model's share on one of several GPUs, as tensor parallelism divides it.

Heads, the widths of MLPs and experts, and the rows of embeddings are divided. Where there are fewer key heads than
GPUs, each GPU keeps one whole: several then hold the same. Norms, routers and per-layer gates are on every GPU.
"""

from dataclasses import replace

from facet.errors import ConfigError
from facet.model_spec import LayerSpec, ModelSpec


def shard_of(spec: ModelSpec, num_gpus: int) -> ModelSpec:
    """The share of each of `num_gpus`; refused where it would not be equal."""
    if num_gpus == 1:
        return spec
    per_layer_input = spec.per_layer_input
    if per_layer_input is not None:
        per_layer_input = replace(per_layer_input, vocab_size=-(-per_layer_input.vocab_size // num_gpus))
    return replace(
        spec,
        vocab_size=-(-spec.vocab_size // num_gpus),
        per_layer_input=per_layer_input,
        layers=tuple(_share(layer, num_gpus) for layer in spec.layers),
    )


def _share(layer: LayerSpec, num_gpus: int) -> LayerSpec:
    def divided(count: int, what: str) -> int:
        if count % num_gpus:
            raise ConfigError(
                f"--gpus {num_gpus}: the {count} {what} of layer {layer.index} cannot be divided evenly. Use a number "
                f"of GPUs that divides {count}."
            )
        return count // num_gpus

    # Every GPU has a whole number of query heads for each of its key heads.
    num_kv_heads = 1 if num_gpus % layer.num_kv_heads == 0 else divided(layer.num_kv_heads, "key heads")
    moe = layer.moe
    return replace(
        layer,
        num_heads=divided(layer.num_heads, "heads"),
        num_kv_heads=num_kv_heads,
        mlp_width=divided(layer.mlp_width, "columns of the MLP"),
        moe=None if moe is None else replace(moe, width=divided(moe.width, "columns of the experts")),
    )
