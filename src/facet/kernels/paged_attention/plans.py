"""What all layers of a kind share in a step: made once by the host, read by every layer."""

from dataclasses import dataclass

from torch import Tensor

from facet.kernels.paged_attention.cache import HeadShape
from facet.kernels.paged_attention.prefill.plan import RunPlan


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
class Unit:
    """Some rows of one sequence at fixed places of a product of fixed shape; `invariant.py` says which."""

    tile: Tile  # `visible` is [rows of a unit, keys]
    first_place: int  # of the first row


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantPlan:
    """As `ReferencePlan`, for results that do not depend on the other rows of the step."""

    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """What all layers of a kind share in a step, on the device."""

    heads: HeadShape
    positions: Tensor  # [rows] int32
    seats: Tensor  # [rows] int32
    block_table: Tensor
    window: int  # 0: none
    tokens_per_block: int
    num_single: int  # rows attended to one by one
    single_rows: Tensor | None  # [num_single] int32: their rows; None: they are the first ones
    longest_single: int  # most keys that one of them sees
    arrivals: Tensor  # [num_single, num_kv_heads] int32, zero between layers: parts of a row that are done
    runs: RunPlan | None  # the longer runs


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePass:
    """Tiles whose shares are in memory at the same time, and their rows."""

    tiles: range
    rows: range


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantTritonPlan:
    """As `TritonPlan`, for results that do not depend on the other rows of the step."""

    heads: HeadShape
    positions: Tensor  # [rows] int32
    seats: Tensor  # [rows] int32
    block_table: Tensor
    window: int  # 0: none
    tokens_per_block: int
    tiles: Tensor  # [tiles, 2] int32: first row, number of rows
    tokens_per_tile: int  # no tile has more rows than this
    passes: tuple[TilePass, ...]
    num_shares: int  # most that the keys of a row are cut into
    keys_per_share: int


AttentionPlan = ReferencePlan | InvariantPlan | TritonPlan | InvariantTritonPlan
