"""Products and experts with weights in bfloat16: rings of warps and of warpgroups, and sorted pairs."""

from typing import Any

from facet.kernels.gluon_names import gl
from facet.kernels.linear import cases
from facet.kernels.linear.normed_ring_kernel import normed_ring_kernel
from facet.kernels.linear.ring_config import WarpgroupRing, normed_ring_of, ring_of, warpgroup_ring_of
from facet.kernels.linear.ring_kernel import ring_kernel
from facet.kernels.linear.warpgroup_ring_kernel import warpgroup_ring_kernel
from facet.kernels.moe import hopper_kernel as experts
from facet.kernels.moe import triton_sorting as sorting
from facet.kernels.moe.expert_ring_kernel import expert_ring_kernel
from tests.kernels.hopper_launches.making import Launch, tensor, tiles


def ring_launch(shape: cases.Shape) -> Launch:
    ring, is_gated = ring_of(shape.num_out, shape.num_in), shape.operation == "geglu_linear"
    constants = dict(
        NUM_IN=shape.num_in,
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        ROWS=ring.num_rows,
        BLOCK_IN=ring.block_in,
        STAGES=ring.num_stages,
        NUM_WARPS=ring.num_warps,
        IS_DEPENDENT=True,
    )
    num_out = shape.num_out // 2 if is_gated else shape.num_out
    arguments = (*(tensor() for _ in range(4)), shape.num_in, shape.num_in, 0, ring.num_rows, num_out)
    return ring_kernel, arguments, {**constants, "num_warps": ring.num_warps}


def warpgroup_ring_launch(shape: cases.Shape, num_rows: int = 8) -> Launch:
    ring = warpgroup_ring_of(num_rows, shape.num_out, shape.num_in)
    assert ring is not None
    num_parts = 2 if shape.operation == "geglu_linear" else 1
    num_eights, more_out = shape.num_out // num_parts // 8, ring.more_out
    weight_shape = (num_eights, num_parts, shape.num_in // 64, 8, 64)

    def units(outputs: int) -> Any:
        return tiles(weight_shape, [outputs // num_parts // 8, num_parts, ring.block_in // 64, 8, 64])

    arguments = (
        tiles((num_rows, shape.num_in), [ring.num_rows, ring.block_in]),
        units(ring.wide_out), units(more_out) if more_out else None,
        tensor(), tensor(), 0, num_rows, 8 * num_eights,
    )  # fmt: skip
    constants = dict(
        NUM_IN=shape.num_in,
        HAS_GATED_INPUT=shape.operation == "gated_input_linear",
        STAGES=ring.num_stages,
        IS_DEPENDENT=True,
    )
    return warpgroup_ring_kernel, arguments, {**constants, "num_warps": 4}


def expert_ring_launch(ring: WarpgroupRing, *, is_first: bool) -> Launch:
    """Of 26B-A4B."""
    num_parts, num_out, num_in = (2, 704, 2816) if is_first else (1, 2816, 704)
    num_rows, more_out = ring.num_rows, ring.more_out

    def units(outputs: int) -> Any:
        block = [outputs // num_parts // 8, num_parts, ring.block_in // 64, 8, 64]
        return tiles((num_out // 8, 128 * num_parts, num_in // 64, 8, 64), block)

    arguments = (
        tiles((num_rows if is_first else 8 * num_rows * num_rows, num_in), [num_rows, ring.block_in]),
        units(ring.wide_out), units(more_out) if more_out else None,
        tensor(gl.int64), tensor(), num_rows, num_out,
    )  # fmt: skip
    constants = dict(NUM_IN=num_in, NUM_CHOSEN=8, CHOSEN_PAD=8, STAGES=ring.num_stages, IS_DEPENDENT=True)
    return expert_ring_kernel, arguments, {**constants, "num_warps": 4}


def normed_ring_launch(shape: cases.Shape) -> Launch:
    """Of a layer's first and second norm, or of the stream where a per-layer gate takes it."""
    _, (_, weight, more_weight, *_, num_out), constants = warpgroup_ring_launch(shape)
    ring = normed_ring_of(shape.num_out, shape.num_in)
    assert ring is not None
    is_gated, factors = shape.operation == "gated_input_linear", tensor(gl.float32)
    row = (tensor(), tensor(), factors, None if is_gated else factors, None if is_gated else tensor(), tensor())
    arguments = (*row, weight, more_weight, tensor(), tensor(), 1e-6, num_out)
    return normed_ring_kernel, arguments, {**constants, "STAGES": ring.num_stages}


def experts_launch(*, is_first: bool) -> Launch:
    """Of 8192 rows of 26B-A4B."""
    num_out, num_in = (1408, 2816) if is_first else (2816, 704)
    constants = dict(
        NUM_OUT=num_out, NUM_IN=num_in, NUM_CHOSEN=8 if is_first else 1, IS_FIRST=is_first, IS_DEPENDENT=True
    )
    source = tensor() if is_first else tiles((65536, 704), [64, 64])
    numbers = tensor(gl.int32)
    arguments = (source, tiles((128 * num_out, num_in), [64, 64]), numbers, numbers, numbers, tensor(), 640, 0, 128)
    return experts.hopper_kernel, arguments, {**constants, **experts.LAUNCH}


def sorting_launch(num_pairs: int, *, counts: bool = False) -> Launch:
    """Of pairs of 26B-A4B: those of one block, or of several, which are counted before they are placed."""
    pairs, numbers = tensor(gl.int64), tensor(gl.int32)
    is_one = num_pairs <= sorting.BLOCK
    block = num_pairs if is_one else sorting.BLOCK
    sizes = dict(EXPERTS_PAD=128, BLOCK=block, num_warps=8, IS_DEPENDENT=True)
    if counts:
        return sorting.count_kernel, (pairs, tensor(gl.int16), num_pairs), sizes
    arguments = (pairs, None if is_one else tensor(gl.int16), numbers, numbers, numbers, num_pairs, 640)
    sizes |= dict(GROUP_SIZE=16 if is_one else 128, CHUNK=min(block, sorting.CHUNK), COUNTS=sorting.COUNTS)
    return sorting.place_kernel, arguments, sizes


def launches() -> dict[str, Launch]:
    return {
        "ring_of_down": ring_launch(cases.E4B[1]),
        "ring_of_gate_up": ring_launch(cases.E4B[0]),
        "warpgroup_ring_of_down": warpgroup_ring_launch(cases.E4B[1]),
        "warpgroup_ring_of_gate_up": warpgroup_ring_launch(cases.E4B[0]),
        "warpgroup_ring_of_gated_input": warpgroup_ring_launch(cases.E4B[8]),
        "warpgroup_ring_of_16_rows": warpgroup_ring_launch(cases.E4B[6], 16),
        "warpgroup_ring_of_32_rows": warpgroup_ring_launch(cases.E4B[1], 32),
        "warpgroup_ring_of_64_rows": warpgroup_ring_launch(cases.E4B[3], 64),
        "warpgroup_ring_of_64_rows_of_gate_up": warpgroup_ring_launch(cases.E4B[0], 64),
        "warpgroup_ring_of_80_outputs": warpgroup_ring_launch(cases.MEDIUM[3]),
        "warpgroup_ring_of_two_programs": warpgroup_ring_launch(cases.NANO[0]),
        "warpgroup_ring_of_64_rows_of_two_programs": warpgroup_ring_launch(cases.NANO[0], 64),
        "expert_ring_of_gate_up": expert_ring_launch(WarpgroupRing(96, 256, 4), is_first=True),
        "expert_ring_of_down": expert_ring_launch(WarpgroupRing(96, 128, 4), is_first=False),
        "normed_ring_of_qkv": normed_ring_launch(cases.E4B[2]),
        "normed_ring_of_gate_up": normed_ring_launch(cases.E4B[0]),
        "normed_ring_of_gated_input": normed_ring_launch(cases.E4B[8]),
        "normed_ring_of_80_outputs": normed_ring_launch(cases.MEDIUM[3]),
        "normed_ring_of_narrow_qkv": normed_ring_launch(cases.SMALL[4]),
        "experts_gate_up": experts_launch(is_first=True),
        "experts_down": experts_launch(is_first=False),
        "count_pairs": sorting_launch(65_536, counts=True),
        "place_pairs": sorting_launch(65_536),
        "place_512_pairs": sorting_launch(512),
        "place_64_pairs": sorting_launch(64),
    }
