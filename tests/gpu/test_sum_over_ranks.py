"""Sums over ranks that share one GPU, each on a stream of its own: right to the last bit, also from graphs."""

import pytest
import torch

from facet.kernels.sum_over_ranks import cases
from facet.kernels.sum_over_ranks.reference import sum_over_ranks
from facet.ranks import Rank

pytest.importorskip("triton")
from facet.kernels.sum_over_ranks import triton as fast


def make_ranks(size: int) -> list[fast.SharedBuffers]:
    memory = [torch.zeros(fast.buffer_bytes(size), dtype=torch.uint8, device="cuda") for _ in range(size)]
    return [
        fast.SharedBuffers(
            rank=Rank(index=index, size=size),
            addresses=torch.tensor([buffer.data_ptr() for buffer in memory], device="cuda"),
            turns=torch.zeros(fast.MOST_PROGRAMS, dtype=torch.int32, device="cuda"),
            memory=memory,
        )
        for index in range(size)
    ]


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_on_streams(size: int, dtype: torch.dtype) -> None:
    ranks = make_ranks(size)
    streams = [torch.cuda.Stream() for _ in ranks]
    shapes = (*cases.SHAPES, (fast.MOST_BYTES // dtype.itemsize,))
    rounds = [cases.parts(size, shape, dtype, seed=seed, device="cuda") for seed, shape in enumerate(shapes * 10)]
    # All kernels are loaded and all memory is there before one waits for another, since loading may wait for kernels
    # that run. With one look, nobody waits.
    for rank in ranks:
        for parts in rounds[: len(shapes)]:
            fast.sum_over_ranks(parts[0].clone(), rank, most_polls=1)
    found = [[parts[index].clone() for parts in rounds] for index in range(size)]
    torch.cuda.synchronize()
    for number in range(len(rounds)):
        for rank, sums, stream in zip(ranks, found, streams, strict=True):
            with torch.cuda.stream(stream):
                fast.sum_over_ranks(sums[number], rank)
    torch.cuda.synchronize()
    for sums in found:
        for one, parts in zip(sums, rounds, strict=True):
            assert torch.equal(one, sum_over_ranks(parts))


@pytest.mark.parametrize("size", [2, 4])
def test_graphs_can_be_replayed(size: int) -> None:
    """A graph for each rank with several sums, replayed many times with other values."""
    ranks = make_ranks(size)
    streams = [torch.cuda.Stream() for _ in ranks]
    given = [torch.zeros(7, 2560, dtype=torch.bfloat16, device="cuda") for _ in ranks]
    for rank in ranks:
        fast.compile_for(given[0], rank)
    graphs, results = [], []
    torch.cuda.synchronize()
    for rank, values, stream in zip(ranks, given, streams, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            once = fast.sum_over_ranks(values.clone(), rank)
            results.append((once, fast.sum_over_ranks(once[:2] + rank.rank.index, rank)))
        graphs.append(graph)
    for seed in range(50):
        parts = cases.parts(size, (7, 2560), torch.bfloat16, seed=seed, device="cuda")
        for values, part in zip(given, parts, strict=True):
            values.copy_(part)
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        expected = sum_over_ranks(parts)
        again = sum_over_ranks(torch.stack([expected[:2] + index for index in range(size)]))
        for once, twice in results:
            assert torch.equal(once, expected)
            assert torch.equal(twice, again)
