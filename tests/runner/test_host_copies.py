"""Memory that goes through small buffers arrives whole, whatever its size."""

import pytest
import torch

from facet.runner.host_copies import HostCopies

SIZES = ([], [0], [1], [7], [8], [9], [16, 3, 0, 24], [5, 41, 8])


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("direction", ["to_host", "to_device"])
def test_all_bytes_arrive(sizes: list[int], direction: str) -> None:
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in sizes]
    targets = [torch.zeros_like(source) for source in sources]
    copies = HostCopies(torch.device("cpu"), buffer_bytes=8)
    for _ in range(2):  # buffers are used again
        getattr(copies, direction)(sources, targets)
        for source, target in zip(sources, targets, strict=True):
            assert torch.equal(source, target)
            target.zero_()


def test_a_buffer_is_waited_for_before_it_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    copies = HostCopies(torch.device("cpu"), buffer_bytes=4)
    for number, buffer in enumerate(copies._buffers):
        monkeypatch.setattr(buffer, "mark", lambda number=number: done.append(f"mark {number}"))
        monkeypatch.setattr(buffer, "wait", lambda number=number: done.append(f"wait {number}"))
    source = torch.arange(12, dtype=torch.uint8)
    copies.to_host([source], [torch.zeros_like(source)])
    assert done == ["mark 0", "mark 1", "wait 0", "mark 0", "wait 1", "wait 0"]
    done.clear()
    copies.to_device([source], [torch.zeros_like(source)])
    assert done == ["wait 0", "mark 0", "wait 1", "mark 1", "wait 0", "mark 0", "wait 0", "wait 1"]
