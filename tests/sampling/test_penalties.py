"""Penalties against the reference, over many steps and through growth of what is kept."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.sampling.batch_seats import Arrival, BatchSeats
from facet.sampling.penalties import Penalties
from facet.sampling_params import SamplingParams
from tests.sampling.builders import CPU
from tests.sampling.reference import processed_logits

VOCAB_SIZE = 20
TOKENS = st.integers(0, VOCAB_SIZE - 1)


def arrive(penalties: Penalties, seat: int, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
    penalties.add_request(
        Arrival(seat=seat, params=params, prompt_token_ids=prompt, output_token_ids=output, eos_token_ids=())
    )


def applied(penalties: Penalties, logits: torch.Tensor, batch: BatchSeats) -> torch.Tensor:
    changed = logits.clone()
    penalties.apply(changed, batch)
    return changed


@given(
    repetition=st.sampled_from([1.0, 0.5, 1.7]),
    frequency=st.sampled_from([0.0, -0.6, 1.1]),
    presence=st.sampled_from([0.0, -2.0, 0.9]),
    prompt=st.lists(TOKENS, max_size=8),
    output=st.lists(TOKENS, max_size=8),
    steps=st.lists(TOKENS, max_size=5),
)
def test_penalties_are_the_reference_penalties(
    repetition: float, frequency: float, presence: float, prompt: list[int], output: list[int], steps: list[int]
) -> None:
    params = SamplingParams(repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    penalties = Penalties(4, VOCAB_SIZE, CPU)
    arrive(penalties, 0, SamplingParams(presence_penalty=1.0), [], [3])
    arrive(penalties, 2, params, prompt, output)
    arrive(penalties, 1, SamplingParams(), prompt, output)
    batch = BatchSeats((1, 2, 0), CPU)
    logits = torch.linspace(-4, 4, VOCAB_SIZE).repeat(3, 1)
    for token_id in steps:
        penalties.accept(batch, torch.tensor([1, token_id, 2]))
        output = [*output, token_id]
    changed = applied(penalties, logits, batch)
    expected = processed_logits(logits[1].tolist(), params, prompt, output)
    torch.testing.assert_close(changed[1].double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
    assert torch.equal(changed[0], logits[0]), "a neighbour without penalties keeps its logits"


def test_counts_survive_growth_of_slots_and_lists() -> None:
    params = SamplingParams(frequency_penalty=1.0, repetition_penalty=1.2)
    penalties = Penalties(5, 4000, CPU)
    generator = torch.Generator().manual_seed(0)
    prompts = [list(range(seat * 10, seat * 10 + 5)) for seat in range(5)]
    outputs: list[list[int]] = [[] for _ in range(5)]
    seats: tuple[int, ...] = ()
    for seat in range(5):  # one more request every 300 steps: lists outgrow their first capacity
        arrive(penalties, seat, params, prompts[seat], [])
        seats = (*seats, seat)
        batch = BatchSeats(seats, CPU)
        for _ in range(300):
            token_ids = torch.randint(4000, (len(seats),), generator=generator)
            penalties.accept(batch, token_ids)
            for own, token_id in zip(seats, token_ids.tolist(), strict=True):
                outputs[own].append(token_id)
    logits = torch.randn(5, 4000, generator=generator)
    changed = applied(penalties, logits, batch)
    for seat in seats:
        expected = processed_logits(logits[seat].tolist(), params, prompts[seat], outputs[seat])
        torch.testing.assert_close(changed[seat].double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


def test_a_reused_slot_remembers_nothing() -> None:
    params = SamplingParams(presence_penalty=1.0, repetition_penalty=2.0)
    penalties = Penalties(2, VOCAB_SIZE, CPU)
    arrive(penalties, 0, params, [1, 2], [3, 4, 5, 5])
    penalties.remove_request(0)
    assert not penalties.is_active(BatchSeats((0,), CPU))
    arrive(penalties, 1, params, [], [7])
    logits = torch.full((1, VOCAB_SIZE), 2.0)
    changed = applied(penalties, logits, BatchSeats((1,), CPU))
    assert [token for token in range(VOCAB_SIZE) if changed[0, token] != 2.0] == [7]


@pytest.mark.parametrize("repetition", [1e-300, 1e300])
def test_no_penalty_makes_a_logit_infinite(repetition: float) -> None:
    penalties = Penalties(1, 4, CPU)
    arrive(penalties, 0, SamplingParams(repetition_penalty=repetition), [0, 1, 2], [])
    changed = applied(penalties, torch.tensor([[30.0, -30.0, 0.0, 1.0]]), BatchSeats((0,), CPU))
    assert bool(changed.isfinite().all())


def test_nothing_is_kept_for_requests_without_penalties() -> None:
    penalties = Penalties(64, 262_144, CPU)
    for seat in range(64):
        arrive(penalties, seat, SamplingParams(), [1, 2, 3], [])
    assert penalties.num_bytes() == 0
    arrive(Penalties(64, 262_144, CPU), 0, SamplingParams(presence_penalty=0.1), [1], [])
    penalties.remove_request(5)
    arrive(penalties, 5, SamplingParams(presence_penalty=0.1), [1], [])
    assert 0 < penalties.num_bytes() < 2 * 4 * 262_144, "one slot, not one for every seat"
