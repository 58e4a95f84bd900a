"""One layer's keys and values as attention sees them: strided views of the arena, page by page."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """[pages, tokens_per_block, kv_heads, head_dim] each. `values` is None where one stored vector serves as both."""

    keys: Tensor
    values: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecipe:
    """How to make a key from a stored value, for layers whose values are their keys: rotate(weight * value)."""

    weight: Tensor  # [head_dim] float32
    cos_sin: Tensor  # [positions, 2, pairs]
