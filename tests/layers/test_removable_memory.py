"""Memory goes and comes back at the same address."""

from pathlib import Path

import torch

from facet.layers.removable_memory import removable_memory

SIZE = 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_pages_are_given_back() -> None:
    memory = removable_memory(SIZE, torch.device("cpu"))
    numbers = memory.bytes.view(torch.int32)
    numbers.fill_(7)
    before = resident_bytes()
    memory.remove()
    assert resident_bytes() < before - 0.9 * SIZE
    memory.bring_back()
    address = numbers.data_ptr()
    numbers.fill_(8)
    assert (int(numbers[0]), int(numbers[-1]), len(numbers)) == (8, 8, SIZE // 4)
    assert memory.bytes.data_ptr() == address
