"""What launches of kernels that are only compiled are made of: tensors that have types and shapes, and no memory."""

from typing import Any

from triton.runtime.jit import MockTensor

from facet.kernels.gluon_names import TensorDescriptor, gl

# The kernel, its arguments, its constants and options.
Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def tensor(dtype: Any = gl.bfloat16) -> Any:
    return MockTensor(dtype)


def tiles(shape: tuple[int, ...], block: list[int], dtype: Any = gl.bfloat16) -> Any:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(MockTensor(dtype, shape), list(shape), strides, block, layout)
