"""What kernels in Gluon for Hopper have in common: barriers, and tiles as copies take them."""

from torch import Tensor

from facet.kernels.gluon_names import TensorDescriptor, gl, gluon, mbarrier


@gluon.jit
def barrier(count: gl.constexpr):
    """One that `count` arrivals complete."""
    one = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(one, count=count)
    return one


@gluon.jit
def barriers(number: gl.constexpr, count: gl.constexpr):
    several = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(number):
        mbarrier.init(several.index(index), count=count)
    return several


def vector_tiles(vectors: Tensor, num_dims: int) -> TensorDescriptor:
    """Vectors as copies take them: some dimensions of 64 of them."""
    layout = gl.NVMMASharedLayout.get_default_for([64, num_dims], gl.bfloat16)
    return TensorDescriptor.from_tensor(vectors.view(-1, vectors.shape[-1]), [64, num_dims], layout)
