"""Says where experts of few rows go through rings of tiles (`expert_ring_kernel.py`), and how."""

from dataclasses import replace

from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear.ring_config import WarpgroupRing

# With more, groups are as fast: 16 rows of 26B-A4B read two thirds of all experts.
_MOST_ROWS = 8
# The shared memory of a multiprocessor, and what each program takes besides its ring: the system's, and what sums need.
_BYTES, _OTHER_BYTES = 228 << 10, 1536


def rings_of(x: Tensor, gate_up: Tensor, down: Tensor) -> tuple[WarpgroupRing, WarpgroupRing] | None:
    """The rings for both products. None: other kernels serve.

    One layer of 26B-A4B with 1, 2, 4 and 8 rows takes 28.9, 50.8, 87.8 and 148.1 us, in groups 38.0, 57.4, 94.0 and
    151.5; with 16 and 32 at best 233.0 and 315.3, and 235.0 and 308.3.
    """
    if len(x) > _MOST_ROWS or not runs_on_hopper(x.device):
        return None
    from facet.kernels.moe import expert_rings  # imports Gluon

    if not expert_rings.can_run(x, gate_up, down):
        return None
    return _fitted(96, 256, 1, gate_up.shape[2]), _fitted(96, 128, 2, down.shape[2])


def _fitted(num_out: int, block_in: int, num_programs: int, num_in: int) -> WarpgroupRing:
    """A ring as deep as so many programs of a multiprocessor have room for, but for no more tiles than there are."""
    ring = WarpgroupRing(num_out, block_in, -(-num_in // block_in), _MOST_ROWS)
    most_stages = (_BYTES // num_programs - _OTHER_BYTES - ring.bytes_behind) // ring.tile_bytes
    return replace(ring, num_stages=min(ring.num_stages, most_stages))
