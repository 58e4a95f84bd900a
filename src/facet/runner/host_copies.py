"""Copies large memory of a device into the host's and back, through two small page-locked buffers.

A device copies at full speed only from and to page-locked memory, which is slow to get: the operating system takes most
of a second for each GiB. Two buffers of it are enough. While the device fills one, all of the host's cores empty the
other into plain memory, and the other way round.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

BUFFER_BYTES = 64 << 20


class HostCopies:
    """Copies between the host and the device. Memory is given as bytes; every copy is complete when the call
    returns."""

    def __init__(self, device: torch.device, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffers = [_Buffer(buffer_bytes, device) for _ in range(2)]
        self._buffer_bytes = buffer_bytes

    def to_host(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Copies each source, which the device has, to its target."""
        filled: tuple[_Buffer, Tensor] | None = None
        for number, (source, target) in enumerate(self._pieces(sources, targets)):
            buffer = self._buffers[number % 2]
            buffer.bytes[: len(source)].copy_(source, non_blocking=True)
            buffer.mark()
            if filled is not None:
                _empty(*filled)
            filled = buffer, target
        if filled is not None:
            _empty(*filled)

    def to_device(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        """Copies each source, which the host has, to its target."""
        for number, (source, target) in enumerate(self._pieces(sources, targets)):
            buffer = self._buffers[number % 2]
            buffer.wait()  # until the device has what was in it
            buffer.bytes[: len(source)].copy_(source)
            target.copy_(buffer.bytes[: len(source)], non_blocking=True)
            buffer.mark()
        for buffer in self._buffers:
            buffer.wait()

    def _pieces(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [
            (source[first : first + self._buffer_bytes], target[first : first + self._buffer_bytes])
            for source, target in zip(sources, targets, strict=True)
            for first in range(0, len(source), self._buffer_bytes)
        ]


class _Buffer:
    """Memory, and how far the device has come with it."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.bytes = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._event = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        """Waits until the device has done what was launched before the mark."""
        if self._event is not None:
            self._event.synchronize()


def _empty(buffer: _Buffer, target: Tensor) -> None:
    buffer.wait()
    target.copy_(buffer.bytes[: len(target)])
