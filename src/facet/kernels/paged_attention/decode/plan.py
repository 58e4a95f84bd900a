"""Plans which rows of a step are decoded: one by one, each split over its keys."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.kernels.paged_attention.plan import PagedRows
from facet.transfer import arrays_on_device

# Where a row is cut into shares whatever the number of rows, what shares leave behind takes memory by row: more rows
# than fit here are attended to one part after the other.
PARTIALS_LIMIT = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """What all layers of a kind share in a step."""

    rows: PagedRows
    num_rows: int  # that are decoded
    row_map: Tensor | None  # [num_rows] int32: which ones; None: all rows of a step without prompts
    most_keys: int  # that one of them sees
    may_share_seats: bool  # rows that follow each other may be of one sequence
    has_drafts: bool  # where shares are fixed: some step may have rows of drafts, which are computed together
    arrivals: Tensor  # [num_rows, num_kv_heads] int32, zero between layers: shares of a row that are done

    @property
    def is_anchored(self) -> bool:
        """Whether the shares of a window begin at multiples of their size."""
        return self.has_drafts and self.rows.window > 0

    @property
    def map_or_any(self) -> Tensor:
        """The row map, or any other tensor where there is none: kernels do not read that one."""
        return self.rows.positions if self.row_map is None else self.row_map


def plan_decode(
    rows: PagedRows,
    decoded: NDArray[np.int32],
    *,
    longest_context: int,
    has_prompts: bool = True,
    may_share_seats: bool = False,
    has_drafts: bool = False,
) -> DecodePlan:
    """`decoded`: the rows, ascending. Without prompts in the step, all of them.

    Kernels differ by whether there is a map. There always is one beside a prompt, even if the first rows are decoded,
    so that steps with prompts need few kernels; steps without are captured, or have kernels of their own.
    """
    device = rows.block_table.device
    row_map, first, end = None, int(decoded[0]), int(decoded[-1]) + 1
    if has_prompts and end - first > len(decoded):
        (row_map,) = arrays_on_device((decoded,), device)
    elif has_prompts:
        # Without a copy from the host, which a captured graph could not repeat.
        row_map = torch.arange(first, end, dtype=torch.int32, device=device)
    return DecodePlan(
        rows=rows,
        num_rows=len(decoded),
        row_map=row_map,
        most_keys=min(longest_context, rows.window) if rows.window else longest_context,
        may_share_seats=may_share_seats,
        has_drafts=has_drafts,
        arrivals=torch.zeros(len(decoded), rows.heads.num_kv_heads, dtype=torch.int32, device=device),
    )
