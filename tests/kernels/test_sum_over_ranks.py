"""Sums over ranks are the reference's on every rank, to the last bit: ranks are processes that share memory."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.kernels.sum_over_ranks import cases
from facet.kernels.sum_over_ranks.reference import sum_over_ranks
from facet.kernels.tolerance import Tolerance
from facet.ranks import Rank

pytest.importorskip("triton")
import triton

from facet.kernels.sum_over_ranks import triton as fast
from tests.kernels.summing_rank import make_buffer, run_rank

TRUNCATED = Tolerance(absolute=0, relative=2**-7, why="Triton's interpreter cuts digits off where a GPU rounds")

# In processes of their own, which is how ranks are; on a GPU see tests/gpu.
interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="kernels run on the GPU")


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_two_parts_are_added_as_everybody_adds_them(dtype: torch.dtype) -> None:
    parts = cases.parts(2, (1000,), dtype, seed=0)
    assert torch.equal(sum_over_ranks(parts), parts[0] + parts[1])


def test_parts_are_added_in_order_and_rounded_once() -> None:
    parts = torch.tensor([[2.0**9], [1.0], [1.0], [-(2.0**9)]]).to(torch.bfloat16)
    assert sum_over_ranks(parts).item() == 2.0
    large = torch.tensor([[2.0**24], [1.0], [1.0], [-(2.0**24)]])
    assert sum_over_ranks(large).item() == 0.0, "in float32, one after the other"


def sums_on_ranks(folder: Path, parts: Sequence[Tensor], *, last_turn: int = 0) -> list[list[Tensor]]:
    """By rank. Each of `parts` is what all ranks have of a sum."""
    size = len(parts[0])
    for index in range(size):
        make_buffer(folder, index, size, last_turn=last_turn)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.kernels.summing_rank"])
    receivers, processes = [], []
    for index in range(size):
        receiver, sender = context.Pipe(duplex=False)
        own = [part[index] for part in parts]
        process = context.Process(target=run_rank, args=(folder, index, size, last_turn, own, sender), daemon=True)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    try:
        answers = [receiver.recv() for receiver in receivers]
        return [[torch.from_numpy(a).to(b.dtype) for a, b in zip(sums, parts, strict=True)] for sums in answers]
    finally:
        for process in processes:
            process.kill()
            process.join()


@interpreted
def test_every_rank_gets_the_sums_of_the_reference(tmp_path: Path) -> None:
    """Of many sizes one after the other, in the same two places."""
    size = 3
    shapes = [(shape, dtype) for shape in cases.SHAPES for dtype in cases.DTYPES]
    parts = [cases.parts(size, *each, seed=seed) for seed, each in enumerate(shapes)]
    first, *others = sums_on_ranks(tmp_path, parts)
    for place, (sums, part) in enumerate(zip(first, parts, strict=True)):
        assert all(torch.equal(sums, other[place]) for other in others)
        if part.dtype == torch.bfloat16:
            TRUNCATED.check(sums, sum_over_ranks(part))
        else:
            assert torch.equal(sums, sum_over_ranks(part))


@interpreted
def test_turns_run_over(tmp_path: Path) -> None:
    parts = [cases.parts(2, (5,), torch.float32, seed=seed) for seed in range(6)]
    for found in sums_on_ranks(tmp_path, parts, last_turn=(1 << 31) - 4):
        for one, part in zip(found, parts, strict=True):
            assert torch.equal(one, sum_over_ranks(part))


@interpreted
def test_whoever_waits_in_vain_gives_up_if_asked_to() -> None:
    """Rank 1 never comes: what it left in its buffer is no part of this sum."""
    mapped = [torch.zeros(fast.buffer_bytes(2), dtype=torch.uint8) for _ in range(2)]
    buffers = fast.SharedBuffers(
        rank=Rank(index=0, size=2),
        addresses=torch.tensor([buffer.data_ptr() for buffer in mapped]),
        turns=torch.zeros(fast.MOST_PROGRAMS, dtype=torch.int32),
        memory=mapped,
    )
    assert torch.equal(fast.sum_over_ranks(torch.ones(3), buffers, most_polls=5), torch.ones(3))
    signals = [buffer[-8 * fast.MOST_PROGRAMS :].view(torch.int32) for buffer in mapped]
    assert [signal[:4].tolist() for signal in signals] == [[1, 0, 0, 0], [1, 0, 0, 0]], "both were told of rank 0"
    assert buffers.turns[:2].tolist() == [1, 0]
