"""Defines what a plan of attention is, and what every kernel is told about rows and pages."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache


class AttentionPlan(Protocol):
    """What all layers of a kind share in a step. It is made once per step and run once per layer."""

    def run(
        self,
        queries: Tensor,
        cache: LayerCache,
        *,
        scale: float,
        key_recipe: KeyRecipe | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Attention of every row over its own sequence.

        queries: [rows, heads, head_dim]; the result likewise, in `out` if given. The recipe makes keys where the cache
        holds one shared vector per token and head.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """The rows of a step, and where the keys lie that they see: what a GPU is told."""

    heads: HeadShape
    positions: Tensor  # [rows] int32
    last_visible: Tensor  # [rows] int32: the last position that each row sees
    seats: Tensor  # [rows] int32
    block_table: Tensor  # [seats, blocks] int32
    window: int  # 0: none
    tokens_per_block: int

    @classmethod
    def of(
        cls, rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
    ) -> "PagedRows":
        return cls(
            heads=heads,
            positions=rows.positions,
            last_visible=rows.positions if rows.last_visible is None else rows.last_visible,
            seats=rows.seats,
            block_table=block_table,
            window=window or 0,
            tokens_per_block=tokens_per_block,
        )

    @property
    def sees_ahead(self) -> bool:
        """Whether some row sees further than its own position: those of media that attend both ways."""
        return self.last_visible is not self.positions


def rows_of_product(heads: HeadShape, at_least: int) -> int:
    """Rows of a matrix product, a power of two: tokens times the query heads that share a key head."""
    group = heads.num_heads // heads.num_kv_heads
    return max(at_least, 1 << (group - 1).bit_length())
