"""What all layers of a kind share in a step: made once by the host, read by every layer."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Some query rows and the keys they may see. Either one sequence or one row per sequence."""

    query_rows: Tensor | slice
    num_sequences: int
    key_positions: Tensor  # [sequences, keys]
    key_blocks: Tensor  # [sequences, keys]
    key_slots: Tensor  # [sequences, keys]
    visible: Tensor  # [sequences, 1, queries, keys] bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencePlan:
    """Everything about a step that all layers of a kind have in common."""

    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """What all layers of a kind share in a step, on the device."""

    block_table: Tensor
    query_starts: Tensor
    context_lens: Tensor
    window: int  # 0: none
    tokens_per_block: int
    single_rows: Tensor | None  # [n, 2] int32: sequence and row of every sequence with one row
    longest_single: int  # visible keys
    long_sequences: tuple[tuple[int, int], ...]  # (sequence, rows) of the others


AttentionPlan = ReferencePlan | TritonPlan
