"""Tries the sums over ranks that read other GPUs' memory, with a process for each rank, and times them against NCCL.

    python -m benchmarks.all_reduce_gpu                  # a rank on each GPU of this machine
    python -m benchmarks.all_reduce_gpu --on-one-gpu 2   # two ranks on the first one: are sums right?

Each sum is compared with the reference, bit for bit: one by one, and from a graph that is replayed with other values.
Ranks on one GPU take turns of milliseconds while each waits for the other, and NCCL refuses them, so no times are
printed then.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from facet.kernels.sum_over_ranks import cases, sum_over_ranks
from facet.layers.direct_sums import DirectSums, find_direct_sums, is_right, share_buffers
from facet.layers.meeting import file_store, gloo, join_ranks
from facet.layers.rank_group import RankGroup
from facet.ranks import Rank

NUM_REPLAYS = 200
SUMS_PER_GRAPH = 4


class ThroughProcessors(RankGroup):
    """Gathers what is on a GPU with gloo, for ranks that NCCL does not take."""

    def gather(self, tensor: Tensor) -> Tensor:
        return super().gather(tensor.cpu()).to(tensor.device)


def replays_are_right(group: RankGroup, sums: DirectSums, shape: tuple[int, ...], device: torch.device) -> bool:
    """Each sum of a graph goes into the next one, so that one fault spoils what follows."""
    own = torch.zeros(shape, dtype=torch.bfloat16, device=device)

    def chain(parts: Tensor) -> Tensor:
        for number in range(SUMS_PER_GRAPH):
            parts = sum_over_ranks(parts).expand(parts.shape) * 0.5 ** (number + group.rank.size)
        return parts[0]

    def run() -> Tensor:
        total = own.clone()
        for number in range(SUMS_PER_GRAPH):
            total = sums.sum(total) * 0.5 ** (number + group.rank.size)
        return total

    run()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    for seed in range(NUM_REPLAYS):
        parts = cases.parts(group.rank.size, shape, torch.bfloat16, seed=seed, device=str(device))
        own.copy_(parts[group.rank.index])
        graph.replay()
        if not torch.equal(result, chain(parts)):
            return False
    return True


def run_rank(index: int, size: int, folder: str, is_on_one_gpu: bool) -> None:
    rank = Rank(index=index, size=size)
    device = torch.device("cuda", 0 if is_on_one_gpu else index)
    torch.cuda.set_device(device)
    store = file_store(Path(folder), rank)
    if is_on_one_gpu:
        group: RankGroup = ThroughProcessors(rank, gloo(store, rank))
        buffers = share_buffers(rank, device, store)
        right = is_right(group, buffers, device)
        line = f"{size} ranks on one GPU: memory is shared"
        sums: DirectSums | None = DirectSums(buffers, 1 << 30)
    else:
        group = join_ranks(rank, device, store)
        sums, line = find_direct_sums(group, device, store)
        right = sums is not None
    told = [line]
    if sums is not None:
        told.append(f"sums one by one: {'right' if right else 'WRONG'}")
        for shape in ((1, 2560), (8, 5376), (1, 262_144)):
            is_shape_right = replays_are_right(group, sums, shape, device)
            told.append(f"{shape} from a graph: {'right' if is_shape_right else 'WRONG'}")
    group.meet(device)
    print("\n".join(f"rank {index}: {each}" for each in told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on-one-gpu", type=int, default=0, metavar="RANKS")
    options = parser.parse_args()
    size = options.on_one_gpu or torch.cuda.device_count()
    if size < 2:
        parser.error("this machine has fewer than two GPUs; try --on-one-gpu 2")
    if options.on_one_gpu:
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        spawn(run_rank, (size, folder, bool(options.on_one_gpu)), nprocs=size)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
