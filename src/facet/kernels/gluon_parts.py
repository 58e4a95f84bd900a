"""What kernels in Gluon have in common: the order of loads, and on Hopper barriers, and tiles as copies take them."""

from functools import cache
from typing import Any

from torch import Tensor

from facet.kernels.gluon_names import TensorDescriptor, gl, gluon, mbarrier


@gluon.jit
def stay_in_order():
    """Keep the compiler from moving loads across: those ahead of time to where their results are needed, or others
    ahead of where registers are free for them."""
    gl.inline_asm_elementwise("bar.warp.sync 0xffffffff; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def barrier(count: gl.constexpr):
    """A barrier that `count` arrivals complete."""
    one = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(one, count=count)
    return one


@gluon.jit
def barriers(number: gl.constexpr, count: gl.constexpr):
    several = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(number):
        mbarrier.init(several.index(index), count=count)
    return several


@cache
def layout_of(block: tuple[int, ...], dtype: Any = gl.bfloat16) -> Any:
    """The layout of a tile in shared memory. It is cached: finding it takes the host 11 µs, the rest of a descriptor
    3."""
    return gl.NVMMASharedLayout.get_default_for(list(block), dtype)


def vector_tiles(vectors: Tensor, num_dims: int) -> TensorDescriptor:
    """Vectors as copies take them: some dimensions of 64 of them."""
    block = (64, num_dims)
    return TensorDescriptor.from_tensor(vectors.view(-1, vectors.shape[-1]), list(block), layout_of(block))
