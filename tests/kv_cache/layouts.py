"""Layouts for tests: small ones given directly, real ones derived from a spec of the model's shape."""

from facet.kv_layout import KVGroup, KVLayout, make_kv_layout
from facet.model_spec import LayerSpec, ModelSpec, RotarySpec

PAGE_BYTES = 1 << 12


def make_layout(*groups: tuple[int | None, int]) -> KVLayout:
    """A layout from (window, tokens per block) pairs; a window of None makes a global group."""
    return KVLayout(
        page_bytes=PAGE_BYTES,
        groups=tuple(
            KVGroup(
                kind="global" if window is None else "sliding",
                window=window,
                bytes_per_token=PAGE_BYTES // tokens_per_block,
                tokens_per_block=tokens_per_block,
                stores=(),
            )
            for window, tokens_per_block in groups
        ),
    )


def shape_of_31b() -> KVLayout:
    """60 layers, five sliding ones to each global one, whose values are its keys."""
    return make_kv_layout(
        _spec(num_layers=60, window=1024, num_kv_heads=16, num_global_kv_heads=4, values_are_keys=True),
        dtype="bfloat16",
    )


def shape_of_e4b() -> KVLayout:
    """42 layers of which the last 18 own nothing."""
    return make_kv_layout(
        _spec(num_layers=42, window=512, num_kv_heads=2, num_global_kv_heads=2, num_shared_layers=18),
        dtype="bfloat16",
    )


def _spec(
    *,
    num_layers: int,
    window: int,
    num_kv_heads: int,
    num_global_kv_heads: int,
    values_are_keys: bool = False,
    num_shared_layers: int = 0,
) -> ModelSpec:
    def layer(index: int) -> LayerSpec:
        is_global = index % 6 == 5
        return LayerSpec(
            index=index,
            attention="global" if is_global else "sliding",
            window=None if is_global else window,
            num_heads=num_kv_heads,
            num_kv_heads=num_global_kv_heads if is_global else num_kv_heads,
            head_dim=512 if is_global else 256,
            attention_scale=1.0,
            rotary=RotarySpec(theta=1e4),
            kv_from_layer=None if index < num_layers - num_shared_layers else index % 6,
            values_are_keys=values_are_keys and is_global,
            values_are_normed=True,
            mlp_width=1,
            mlp_sparsity=0.0,
            moe=None,
        )

    return ModelSpec(
        family="gemma4",
        architecture="Gemma4ForCausalLM",
        hidden_size=1,
        vocab_size=1,
        layers=tuple(map(layer, range(num_layers))),
        norm_eps=1e-6,
        norm_weights_offset=0.0,
        has_layer_scalar=True,
        per_layer_input=None,
        altup=None,
        logit_softcap=None,
        tied_embeddings=True,
        max_positions=131072,
        bidirectional_image_layers=(),
        eos_token_ids=(),
        checkpoint_dtype=None,
    )
