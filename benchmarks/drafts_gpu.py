"""Times a token with and without a drafter on a GPU, in one process, with random weights and made-up acceptance.

    python -m benchmarks.drafts_gpu --model "Gemma 4 31B" [--requests 1 32 100]

Model and drafter have their published shapes. Random weights agree on nothing, so drafts count as right at given rates
(`synthetic_acceptance_rates`): those published of the 31B drafter, and a mean of 2.5 tokens a step for E4B. Prompts
have 512 tokens. Tokens are timed while all requests generate: from the step behind the last prompt to the one in which
the first answer ends. Turns without and with drafts alternate, in one engine whose drafter is asked or not.

Printed beside it: what the times measured at start promise, and what reading the weights takes at least.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from facet.config import EngineConfig
from facet.engine.engine import Engine
from facet.engine.loading import make_runner
from facet.model.gemma import Gemma
from facet.model.weight_map import PER_LAYER_TABLE
from facet.progress import Silent
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.scheduler.drafting import Draftable, Drafter, Drafts
from facet.step import StepPlan, StepResult
from tests.published_configs import DRAFTERS, text_only

RATES = {"Gemma 4 31B": (0.90, 0.80, 0.69, 0.56), "Gemma 4 E4B": (0.85, 0.65)}
BYTES_PER_SECOND = 4.26e12  # that an H200 reads
# Layers, projections, and what is read of the head: all of it, or the centroids and 4096 rows.
BYTES_PER_DRAFT = {"Gemma 4 31B": 0.94e9, "Gemma 4 E4B": 25e6}
PROMPT_LEN, SHORT = 512, 24
NUM_TURNS = 2


class Switched:
    """A drafter that is asked only while it is on."""

    def __init__(self, drafter: Drafter) -> None:
        self.max_num_drafts = drafter.max_num_drafts
        self.is_on = False
        self._drafter = drafter

    def could_gain(self, num_running: int) -> bool:
        return self.is_on and self._drafter.could_gain(num_running)

    def num_ahead(self, num_running: int) -> int:
        return self._drafter.num_ahead(num_running) if self.is_on else 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        return self._drafter.propose(requests)

    def num_unseen(self, requests: Sequence[Draftable]) -> Mapping[int, int]:
        return self._drafter.num_unseen(requests)

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        return self._drafter.is_worth_waiting(requests)

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        self._drafter.learn(plan, result, seconds)

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        self._drafter.hear(plan, guesses)


class Turn(NamedTuple):
    """While all requests generated."""

    seconds: float
    num_steps: int
    num_tokens: int


class Bench:
    def __init__(self, engine: Engine, switch: Switched) -> None:
        self.engine = engine
        self._switch = switch

    def answer(self, num_requests: int, num_tokens: int) -> Turn:
        """The first to begin have some tokens before all of them generate, and end the turn that much sooner."""
        sampling = SamplingParams(max_tokens=num_tokens, ignore_eos=True, temperature=0.0)
        for request in range(num_requests):
            prompt = tuple((7 * place + 13 * request) % 100 + 10 for place in range(PROMPT_LEN))
            self.engine.submit(Request(request_id=str(request), prompt_token_ids=prompt, sampling=sampling))
        begun: set[str] = set()
        while len(begun) < num_requests:
            begun.update(event.request_id for event in self.engine.step())
        start, num_steps = time.perf_counter(), self.engine.stats().work.num_steps
        num_timed, has_ended = 0, False
        while not has_ended:
            events = self.engine.step()
            num_timed += sum(len(event.token_ids) for event in events)
            has_ended = any(event.finish_reason is not None for event in events)
        turn = Turn(time.perf_counter() - start, self.engine.stats().work.num_steps - num_steps, num_timed)
        while self.engine.has_work:
            self.engine.step()
        return turn

    def measure(self, num_requests: int, num_tokens: int, *, is_on: bool) -> tuple[float, float]:
        """Milliseconds of a token of each request, and of a step."""
        self._switch.is_on = is_on
        seconds, num_steps, num_timed = self.answer(num_requests, num_tokens)
        return seconds * 1e3 * num_requests / num_timed, seconds * 1e3 / num_steps


def num_bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 31B", choices=tuple(RATES))
    parser.add_argument("--requests", type=int, nargs="+", default=(1, 32, 100))
    options = parser.parse_args()
    rates = RATES[options.model]
    with tempfile.TemporaryDirectory() as folder:
        for name, config in (("model", text_only(options.model)), ("drafter", DRAFTERS[options.model])):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config))
        started = time.perf_counter()
        ready = make_runner(
            EngineConfig(
                model=str(Path(folder) / "model"),
                load_format="dummy",
                dtype="bfloat16",
                max_model_len=1024,
                max_num_seqs=max(options.requests),
                max_num_batched_tokens=4096,
                enable_prefix_caching=False,
                speculative_config={
                    "model": str(Path(folder) / "drafter"),
                    "num_speculative_tokens": len(rates),
                    "synthetic_acceptance_rates": rates,
                },
            ),
            Silent(),
        )
    assert ready.drafter is not None, "a drafter was named"
    print(f"{options.model}, ready after {time.perf_counter() - started:.0f} s")
    print("\n".join(ready.settings.lines()))
    step_seconds, draft_seconds = ready.runner.time_steps(), ready.runner.time_drafts()
    print("ms of steps by rows:", {rows: round(seconds * 1e3, 2) for rows, seconds in step_seconds.items()})
    print("ms of a draft by requests:", {count: round(seconds * 1e3, 3) for count, seconds in draft_seconds.items()})
    print(floor_line(options.model, ready.runner.model))

    switch = Switched(ready.drafter)
    bench = Bench(Engine(ready.runner, ready.settings, None, switch), switch)
    for num_requests in options.requests:
        num_tokens = 384 if num_requests > 32 else 264
        for is_on in (False, True):
            switch.is_on = is_on
            bench.answer(num_requests, SHORT)  # what is compiled or chosen at first
        for _ in range(NUM_TURNS):
            off, _ = bench.measure(num_requests, num_tokens, is_on=False)
            before = bench.engine.stats().scheduler.drafts
            on, step = bench.measure(num_requests, num_tokens, is_on=True)
            drafts = bench.engine.stats().scheduler.drafts
            runs, drafted, accepted = (
                getattr(drafts, name) - getattr(before, name) for name in ("num_runs", "num_drafts", "num_accepted")
            )
            by_run = f"{drafted / runs:.2f} drafts a run, {accepted / runs:.2f} accepted" if runs else "no drafts"
            print(
                f"{num_requests} requests: off {off:.3f} ms a token, on {on:.3f}, {off / on:.2f} times; "
                f"a step {step:.3f} ms, {step / on:.2f} tokens; {by_run}",
                flush=True,
            )


def floor_line(name: str, model: Gemma) -> str:
    """What a token of one request takes at least, by the bytes that a step and its drafts read."""
    looked_up = [model.get_submodule(PER_LAYER_TABLE)] if model.per_layer_inputs is not None else []
    step = (num_bytes(model) - sum(map(num_bytes, looked_up))) / BYTES_PER_SECOND * 1e3
    rates = RATES[name]
    drafting, length = len(rates) * BYTES_PER_DRAFT[name] / BYTES_PER_SECOND * 1e3, 1 + sum(rates)
    return (
        f"read at 4.26 TB/s: a step {step:.2f} ms, {len(rates)} drafts {drafting:.2f} ms, over {length:.2f} tokens: "
        f"{(step + drafting) / length:.2f} ms a token at least, {step:.2f} without drafts"
    )


if __name__ == "__main__":
    main()
