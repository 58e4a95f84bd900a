"""Measures drafts on the bundled model: tokens per second without, from the text, by its drafter and both, in one run.

    python -m benchmarks.drafts_cpu

Four engines answer the same requests in turns, one at a time:

- calls with a long argument, one of two that the tool's schema allows: so far the model cannot copy by itself;
- several calls at once, thought over before, in which tools and arguments are copied from the request;
- free text.

Seconds are those that this process computed, so that other work on the machine does not count. Prompts are included;
only turns after the first count, in which most of a prompt is found in the prefix cache. Answers are compared, too:
they are the same. That is why all compute in float32: in bfloat16 near ties fall by the number of rows in a step, so
that an answer differs even without drafts once its prompt is cached.
"""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from facet import LLM, SamplingParams
from facet.bundled_model import FOLDER
from facet.draft_counts import DraftCounts
from facet.offline import RequestOutput
from tools.bundled_model.evaluation_cases import make_cases

NUM_TURNS = 3  # and one before them
METHODS: dict[str, dict[str, Any] | None] = {
    "off": {"method": "none"},
    "suffix": {"method": "suffix"},
    "drafter": {"model": str(FOLDER / "assistant")},
    "both": None,  # what happens by default
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=400)
WORDS = (
    *("red", "green", "copper", "silver", "river", "stone", "paper", "window", "garden", "market", "letter", "number"),
    *("morning", "winter", "summer", "table", "bridge", "yellow", "story", "little", "street", "people", "water"),
    *("circle", "doctor", "engine", "music", "planet", "orange", "ticket", "village", "corner"),
)
WORDS_OF_AN_ARGUMENT = 100


@dataclass(frozen=True, slots=True)
class Ask:
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    must_call: bool = False
    thinks: bool = False


def long_arguments() -> list[Ask]:
    choose = random.Random(0)
    asks = []
    for _ in range(2):
        texts = [" ".join(choose.choices(WORDS, k=WORDS_OF_AN_ARGUMENT)) for _ in range(2)]
        text = {"type": "string", "enum": texts, "description": "The text"}
        parameters = {"type": "object", "properties": {"text": text}, "required": ["text"]}
        tool = {"name": "send_text", "description": "Send a text.", "parameters": parameters}
        ask = f'Use send_text with the text "{texts[1][:60]}".'
        asks.append(Ask([{"role": "user", "content": ask}], [{"type": "function", "function": tool}], must_call=True))
    return asks


def several_calls() -> list[Ask]:
    """Those of the evaluation's that have most to copy."""
    cases = [case for case in make_cases(100, seed=1) if case.group == "several calls" and case.dialogue.thinks]
    cases.sort(key=lambda case: -sum(len(str(call.arguments)) for call in case.calls))
    return [Ask(case.messages, case.tools, thinks=True) for case in cases[:4]]


def free_text() -> list[Ask]:
    prompts = ("Tell me a short story.", "What is Facet?", "What is twelve plus thirty?")
    return [Ask([{"role": "user", "content": prompt}]) for prompt in prompts]


def answer(llm: LLM, asks: Sequence[Ask]) -> tuple[float, list[RequestOutput]]:
    """Tokens per second of this process's own time, one request at a time."""
    start = time.process_time()
    outputs = [
        llm.chat(
            ask.messages,
            GREEDY,
            tools=ask.tools,
            tool_choice="required" if ask.must_call else None,
            chat_template_kwargs={"enable_thinking": ask.thinks},
            use_tqdm=False,
        )[0]
        for ask in asks
    ]
    seconds = time.process_time() - start
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds, outputs


def measure(engines: dict[str, LLM], name: str, asks: Sequence[Ask]) -> None:
    before = {method: llm.stats().drafts for method, llm in engines.items()}
    speeds: dict[str, list[float]] = {method: [] for method in engines}
    for turn in range(1 + NUM_TURNS):
        expected = None
        for method, llm in engines.items():
            speed, outputs = answer(llm, asks)
            token_ids = [output.outputs[0].token_ids for output in outputs]
            expected = expected or token_ids
            assert token_ids == expected, f"{method} changes an answer"
            if turn:
                speeds[method].append(speed)
    lengths = sorted(map(len, token_ids))
    print(f"\n{name}: answers of {lengths[0]} to {lengths[-1]} tokens, such as {outputs[0].outputs[0].text!r:.80}")
    for method, llm in engines.items():
        ratios = [own / off for own, off in zip(speeds[method], speeds["off"], strict=True)]
        print(
            f"  {method:8} {statistics.median(speeds[method]):5.0f} tok/s, {statistics.median(ratios):.2f} times "
            f"({min(ratios):.2f} to {max(ratios):.2f}){_accepted(before[method], llm.stats().drafts)}",
            flush=True,
        )


def _accepted(before: DraftCounts, after: DraftCounts) -> str:
    num_drafts, num_runs = after.num_drafts - before.num_drafts, after.num_runs - before.num_runs
    num_accepted = after.num_accepted - before.num_accepted
    return f"; {num_accepted} of {num_drafts} drafts accepted in {num_runs} steps" if num_drafts else ""


def main() -> None:
    engines = {
        method: LLM(device="cpu", dtype="float32", show_progress=False, speculative_config=config)
        for method, config in METHODS.items()
    }
    measure(engines, "a call with a long argument", long_arguments())
    measure(engines, "several calls", several_calls())
    measure(engines, "free text", free_text())


if __name__ == "__main__":
    main()
