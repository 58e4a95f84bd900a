"""Says where experts of few rows go through rings of tiles (`expert_ring_kernel.py`), and how."""

from dataclasses import replace

from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear.ring_config import WarpgroupRing

# Not before they have been timed on a card: so far pairs and groups serve all rows.
IS_SERVED = False
_MOST_ROWS = 32
# Of shared memory, for each of two programs of a multiprocessor; the rest is the system's, and what sums need.
_BYTES = (228 << 9) - 1536
_GATE_UP, _DOWN = WarpgroupRing(96, 128, 0), WarpgroupRing(96, 64, 0)


def rings_of(x: Tensor, gate_up: Tensor, down: Tensor) -> tuple[WarpgroupRing, WarpgroupRing] | None:
    """For both products. None: others serve."""
    if not IS_SERVED or len(x) > _MOST_ROWS or not runs_on_hopper(x.device):
        return None
    from facet.kernels.moe import expert_rings  # imports Gluon

    if not expert_rings.can_run(x, gate_up, down):
        return None
    num_rows = next(rows for rows in (8, 16, 32) if len(x) <= rows)
    return _fitted(_GATE_UP, num_rows, gate_up.shape[2]), _fitted(_DOWN, num_rows, down.shape[2])


def _fitted(ring: WarpgroupRing, num_rows: int, num_in: int) -> WarpgroupRing:
    """As deep as there is room, but for no more tiles than there are."""
    ring = replace(ring, num_rows=num_rows)
    num_stages = (_BYTES - ring.num_bytes) // ring.tile_bytes
    return replace(ring, num_stages=min(num_stages, -(-num_in // ring.block_in)))
