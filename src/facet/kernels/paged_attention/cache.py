"""Describes a layer to attention: its heads, and its keys and values as strided views of the arena."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """[pages, tokens_per_block, kv_heads, head_dim] each. `values` is None where one shared vector serves as both.

    Both have the same strides: kernels take those of the keys. The dtype of the views is that of the stored numbers.
    Scales, [pages, tokens_per_block, kv_heads] in float32, are there for dtypes that keep one per token and head; a
    number is then what is stored times its scale. How numbers are rounded on their way in and out is in
    `quantization.py`.
    """

    keys: Tensor
    values: Tensor | None
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.keys.stride()[2:] == (self.keys.shape[3], 1), "the heads of a token lie side by side"
        for key_part, value_part in ((self.keys, self.values), (self.key_scales, self.value_scales)):
            same = key_part is None or value_part is None or key_part.stride() == value_part.stride()
            assert same, "kernels would read values by the strides of the keys"

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
