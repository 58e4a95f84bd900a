"""A rank that sums in Triton's interpreter: a process with the buffers of all ranks in memory that they share."""

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from facet.kernels.sum_over_ranks.triton import MOST_PROGRAMS, SharedBuffers, buffer_bytes, sum_over_ranks
from facet.ranks import Rank


def make_buffer(folder: Path, index: int, size: int, *, last_turn: int) -> None:
    """As it is after so many turns of every program."""
    buffer = torch.zeros(buffer_bytes(size), dtype=torch.uint8)
    buffer[-4 * MOST_PROGRAMS * size :].view(torch.int32).fill_(last_turn)
    (folder / f"buffer {index}").write_bytes(buffer.numpy().tobytes())


def run_rank(folder: Path, index: int, size: int, last_turn: int, parts: list[Tensor], answers: Connection) -> None:
    """Makes the sum of each of `parts`, after pauses of its own, and sends them all when it has them."""
    torch.set_num_threads(1)
    mapped = [
        torch.from_file(str(folder / f"buffer {other}"), shared=True, size=buffer_bytes(size), dtype=torch.uint8)
        for other in range(size)
    ]
    buffers = SharedBuffers(
        rank=Rank(index=index, size=size),
        addresses=torch.tensor([buffer.data_ptr() for buffer in mapped]),
        turns=torch.full((MOST_PROGRAMS,), last_turn, dtype=torch.int32),
        memory=mapped,
    )
    pauses = random.Random(index)
    sums = []
    for part in parts:
        time.sleep(pauses.choice((0, 0, 0.02)))
        sums.append(sum_over_ranks(part.clone(), buffers).float().numpy())
    answers.send(sums)
