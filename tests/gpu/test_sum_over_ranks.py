"""Sums over ranks that share one GPU, each on a stream of its own: right to the last bit, also from graphs."""

import pytest
import torch
from torch import Tensor

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
    for rank in ranks:
        for parts in rounds[: len(shapes)]:
            fast.compile_for(parts[0].clone(), rank)
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[] for _ in ranks]
    for parts in rounds:
        for index, (rank, stream) in enumerate(zip(ranks, streams, strict=True)):
            with torch.cuda.stream(stream):
                found[index].append(fast.sum_over_ranks(parts[index].clone(), rank))
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
