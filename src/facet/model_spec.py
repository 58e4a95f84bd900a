"""Describes a model as data. Every Gemma runs through the same decoder; only the numbers here differ.

A spec is complete: what `config.json` leaves out has been filled in (see `model/families.py`), so no code below ever
asks for a model's name.
"""

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["sliding", "global"]
Family = Literal["gemma3", "gemma3n", "gemma4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """Which pairs of a head's dimensions turn, and how fast.

    Pair j is (j, j + head_dim/2). The first `num_rotated_pairs(head_dim)` pairs rotate by
    position * theta^(-2j/head_dim) / factor; the rest pass through unchanged.
    """

    theta: float
    rotated_fraction: float = 1.0
    factor: float = 1.0

    def num_rotated_pairs(self, head_dim: int) -> int:
        return int(self.rotated_fraction * head_dim // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A router and experts that run beside the dense MLP of a layer."""

    num_experts: int
    num_chosen: int
    width: int
    num_holders: int = 1  # ranks that hold whole experts, an equal share each

    @property
    def num_held(self) -> int:
        """Experts that one rank holds."""
        return self.num_experts // self.num_holders


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One decoder layer."""

    index: int
    attention: AttentionKind
    window: int | None  # how many tokens a query sees, itself included; None: all before it
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_scale: float
    rotary: RotarySpec
    kv_from_layer: int | None  # the layer whose keys and values this one reads; None: its own
    values_are_keys: bool  # v is the normalised key projection, and k = rotate(weight * v)
    values_are_normed: bool  # v passes a scale-free norm before it is stored
    mlp_width: int
    mlp_sparsity: float  # share of gate activations cut to zero; 0: none
    moe: MoeSpec | None

    @property
    def owns_kv(self) -> bool:
        return self.kv_from_layer is None

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def stored_width(self) -> int:
        """Values that a token stores here, if the layer owns what it reads."""
        return self.kv_width * (1 if self.values_are_keys else 2)

    def values_per_row(self, hidden_size: int) -> int:
        """How many values the large matrices have that a row is multiplied by: attention, MLP and chosen experts."""
        widths = 2 * self.query_width + (self.stored_width if self.owns_kv else 0) + 3 * self.mlp_width
        if self.moe is not None:
            widths += 3 * self.moe.num_chosen * self.moe.width
        return widths * hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerInputSpec:
    """A second, narrow embedding that feeds each layer its own slice."""

    width: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AltUpSpec:
    """Gemma 3n: several parallel residual streams, and a low-rank side path around attention."""

    num_streams: int
    laurel_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A text decoder."""

    family: Family
    architecture: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    norm_weights_offset: float  # added to stored norm weights: 1 for Gemma 3, which stores w - 1
    has_layer_scalar: bool
    per_layer_input: PerLayerInputSpec | None
    altup: AltUpSpec | None
    logit_softcap: float | None
    tied_embeddings: bool
    max_positions: int
    bidirectional_image_layers: tuple[AttentionKind, ...]  # kinds in which an image sees all of itself
    eos_token_ids: tuple[int, ...]
    media_token_ids: tuple[int, ...] = ()  # placeholders and boundaries of media; only a prompt has them
    checkpoint_dtype: str | None  # what config.json says the weights are; None: it does not say

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def first_shared_layer(self) -> int:
        """The index from which on no layer owns keys or values; `num_layers` when every layer owns its own."""
        for layer in reversed(self.layers):
            if layer.owns_kv:
                return layer.index + 1
        return 0

    @property
    def last_owning_layer(self) -> int:
        """The last layer that stores keys: past it, rows without requested logits need no further computation."""
        return self.first_shared_layer - 1
