"""Describes a layer to attention: its heads, and its keys and values as strided views of the arena."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """[pages, tokens_per_block, kv_heads, head_dim] each. `values` is None where one shared vector serves as both.

    The dtype of the views is that of the stored numbers. Scales, [pages, tokens_per_block, kv_heads] in float32, are
    there for dtypes that keep one per token and head; a number is then what is stored times its scale. How numbers
    are rounded on their way in and out is in `quantization.py`.
    """

    keys: Tensor
    values: Tensor | None
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        return self.values is None

    @property
    def is_quantized(self) -> bool:
        return self.keys.dtype.itemsize == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Heads of the layers of one kind. Query head h reads key head h // (num_heads / num_kv_heads)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecipe:
    """How to make a key from a shared vector, which is the value: rotate(weight * value)."""

    weight: Tensor  # [head_dim] float32
    cos_sin: Tensor  # [positions, 2, pairs]
