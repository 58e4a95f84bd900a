"""The keys of a step, however many steps they were computed ahead."""

import numpy as np
import pytest
import torch

from facet.sampling.batch_seats import Arrival, BatchSeats
from facet.sampling.noise import noise_keys, seed_states
from facet.sampling.seeds import STEPS_AHEAD, Seeds
from facet.sampling_params import SamplingParams
from tests.sampling.builders import CPU

NO_TOKENS = torch.zeros(0, dtype=torch.int64)


def add(seeds: Seeds, seat: int, seed: int, num_outputs: int = 0) -> None:
    seeds.add_request(
        Arrival(
            seat=seat,
            params=SamplingParams(seed=seed),
            prompt_token_ids=[],
            output_token_ids=[1] * num_outputs,
            eos_token_ids=[],
        )
    )


def expected(seeds_and_positions: list[tuple[int, int]]) -> list[list[int]]:
    seeds, positions = zip(*seeds_and_positions, strict=True)
    return noise_keys(seed_states(np.array(seeds, dtype=np.uint64)), np.array(positions)).tolist()


@pytest.mark.parametrize("seats", [(3,), (2, 0), (1, 3, 0)])
def test_every_step_has_its_own_keys(seats: tuple[int, ...]) -> None:
    seeds = Seeds(4)
    for seat in range(4):
        add(seeds, seat, seed=10 + seat, num_outputs=seat)
    batch = BatchSeats(seats, CPU)
    for step in range(2 * STEPS_AHEAD + 1):
        wanted = expected([(10 + seat, seat + step) for seat in seats])
        assert seeds.keys(batch).tolist() == wanted
        assert seeds.keys(batch).tolist() == wanted, "asking again moves nothing"
        seeds.accept(batch, NO_TOKENS)


def test_steps_of_another_batch_in_between_are_counted() -> None:
    """A batch may come back with seats that have moved on in another; some steps ask for no keys at all."""
    seeds = Seeds(2)
    add(seeds, 0, seed=5)
    add(seeds, 1, seed=6)
    both, first = BatchSeats((0, 1), CPU), BatchSeats((0,), CPU)
    assert seeds.keys(both).tolist() == expected([(5, 0), (6, 0)])
    seeds.accept(both, NO_TOKENS)
    seeds.accept(first, NO_TOKENS)  # a greedy step, say: nobody asked for keys
    assert seeds.keys(both).tolist() == expected([(5, 2), (6, 1)])
    assert seeds.keys(first).tolist() == expected([(5, 2)])
    seeds.accept(both, NO_TOKENS)
    assert seeds.keys(first).tolist() == expected([(5, 3)])
    assert seeds.keys(both).tolist() == expected([(5, 3), (6, 2)])
