"""Gives the memory of weights and cache back while a model sleeps, and brings it again to where it was.

Weights are moved once, when they have been loaded, into memory that can be removed; small ones, which together take
next to nothing, stay. So do graphs and their buffers.

    level 1    weights wait in the host's memory; on a CPU they stay where they are
    level 2    weights are dropped, and read from the checkpoint again
"""

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from facet.layers.kv_arena import KVArena
from facet.layers.removable_memory import HostMemory, RemovableMemory, removable_memory
from facet.runner.host_copies import HostCopies

LEAST_BYTES = 1 << 20  # of a tensor that is moved

_Modules = Sequence[nn.Module]
_MovedWeights = Sequence[tuple[Tensor, RemovableMemory]]


def move_weights(modules: _Modules, *, tables_on_host: _Modules = ()) -> _MovedWeights:
    """Moves weights to memory that can be removed, before anything keeps their addresses. `tables_on_host` are parts
    that stay where they are."""
    stay = {id(tensor) for tensor in _tensors(tables_on_host)}
    movable = (tensor for tensor in _tensors(modules) if tensor.nbytes >= LEAST_BYTES and id(tensor) not in stay)
    return [(tensor, _move(tensor)) for tensor in movable]


class Sleeper:
    def __init__(self, modules: _Modules, weights: _MovedWeights, arena: KVArena, load: Callable[[], _Modules]) -> None:
        """`load` makes the same modules again, with their weights."""
        self.level = 0  # 0: awake
        self._modules = modules
        self._weights = weights
        self._arena = arena
        self._load = load
        # Buffers are locked now: the first sleep would otherwise wait for that.
        self._copies = HostCopies(arena.bytes.device) if arena.bytes.is_cuda else None
        self._kept: list[HostMemory] = []  # of these, while they sleep

    def sleep(self, level: int) -> None:
        """Sleeps, or sleeps on at level 2: weights that wait in the host's memory are dropped, too."""
        assert level in (1, 2), "there are two levels"
        assert self.level < level, "it sleeps already"
        if self.level == 1:
            self._kept = []
            if self._copies is None:
                self._remove_weights()
            self.level = level
            return
        if level == 1 and self._copies is not None:
            torch.cuda.synchronize()
            self._kept = [HostMemory(memory.bytes.nbytes) for _, memory in self._weights]
            self._copies.to_host(self._weight_bytes, [kept.bytes for kept in self._kept])
        if level == 2 or self._copies is not None:
            self._remove_weights()
        self._arena.remove()
        self.level = level

    def wake_up(self) -> None:
        """Raises `UserError` if what it needs is not there, and then goes on sleeping."""
        assert self.level != 0, "it is awake"
        loaded = self._load() if self.level == 2 else ()
        for _, memory in self._weights:
            memory.bring_back()
        self._arena.bring_back()
        if self._kept and self._copies is not None:
            self._copies.to_device([kept.bytes for kept in self._kept], self._weight_bytes)
        if loaded:
            for tensor, new in zip(_tensors(self._modules), _tensors(loaded), strict=True):
                tensor.data.copy_(new.data)
        if self._copies is not None:
            torch.cuda.synchronize()
        self._kept = []
        self.level = 0

    def _remove_weights(self) -> None:
        for _, memory in self._weights:
            memory.remove()

    @property
    def _weight_bytes(self) -> list[Tensor]:
        return [memory.bytes for _, memory in self._weights]


def _tensors(modules: _Modules) -> list[Tensor]:
    found = chain.from_iterable((*module.parameters(), *module.buffers()) for module in modules)
    return list({id(tensor): tensor for tensor in found}.values())


def _move(tensor: Tensor) -> RemovableMemory:
    """Moves a tensor's memory. The tensor itself stays the same: others may hold it."""
    assert tensor.untyped_storage().nbytes() == tensor.nbytes, "a weight has its memory to itself"
    memory = removable_memory(tensor.nbytes, tensor.device)
    moved = memory.bytes.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    tensor.data = moved.copy_(tensor.data)
    if tensor.is_cuda:
        torch.cuda.empty_cache()  # before the next one is moved: there may be room for one more only
    return memory
