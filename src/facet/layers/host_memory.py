"""Keeps the tensors of a module in the host's memory, where a GPU reads them itself.

Page-locked memory has one address for the processor and for the GPU. A tensor made of that address is like any other on
the GPU: kernels read the rows they need over the bus, captured graphs and overlapped steps included, and nothing is
copied beforehand. It suits tables of which a step reads a few rows.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from facet.errors import CapacityError

_MAPPED = 2  # cudaHostRegisterMapped


class _PageLocked:
    """The memory of a tensor, locked for as long as something on the GPU is made of it."""

    def __init__(self, tensor: Tensor) -> None:
        address, num_bytes = tensor.data_ptr(), tensor.nbytes
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(cudart.cudaHostRegister(address, num_bytes, _MAPPED)) != 0:
            raise CapacityError(
                f"{num_bytes / 2**30:,.1f} GiB of the host's memory could not be locked for the GPU to read. Free "
                "some, raise what a process may lock, or leave out --embeddings-on-cpu."
            )
        self._tensor = tensor
        weakref.finalize(self, cudart.cudaHostUnregister, address)
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def as_seen_by_gpu(tensor: Tensor, device: torch.device) -> Tensor:
    """The same memory as a tensor on the GPU. It keeps the memory alive."""
    assert tensor.is_contiguous(), "a table is one stretch of memory"
    with torch.cuda.device(device):
        octets: Tensor = torch.as_tensor(_PageLocked(tensor), device=device)
    assert octets.data_ptr() == tensor.data_ptr(), "the GPU reads the host's memory, not a copy"
    return octets.view(tensor.dtype).view(tensor.shape)


def serve_from_host(module: nn.Module, device: torch.device) -> None:
    """Lets a GPU read the parameters and buffers of a module that is in the host's memory."""
    for each in module.modules():
        for name, parameter in list(each.named_parameters(recurse=False)):
            setattr(each, name, nn.Parameter(as_seen_by_gpu(parameter.data, device), requires_grad=False))
        for name, buffer in list(each.named_buffers(recurse=False)):
            each.register_buffer(name, as_seen_by_gpu(buffer, device))
