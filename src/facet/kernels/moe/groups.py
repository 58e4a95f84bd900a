"""Pairs in order of their experts, divided into groups: what a grouped product computes.

A pair is a row and one of its choices; pairs are numbered row by row. A group is some pairs of one expert, as many as
one program takes. There is memory for as many groups as the worst division of pairs among experts needs, since the host
does not wait to learn the actual one.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Groups(NamedTuple):
    order: Tensor  # int32 [pairs]: in order of experts, within an expert by number
    table: Tensor  # int32 [groups, 3]: expert, first place in that order, end. Those not there are last, and zeros
    taken: Tensor  # int32 [1]: zero. A product counts here what its programs took, and leaves zero to the next

    @property
    def num_groups(self) -> int:
        """The number of groups in the table, with those that are not there."""
        return self.table.shape[0]


def empty_groups(chosen: Tensor, num_experts: int, group_size: int) -> Groups:
    """Memory for the groups of `chosen`, [rows, choices]."""
    num_pairs = chosen.numel()
    num_groups = num_pairs // group_size + min(num_experts, num_pairs)
    return Groups(
        *(torch.empty(shape, dtype=torch.int32, device=chosen.device) for shape in (num_pairs, (num_groups, 3), 1))
    )
