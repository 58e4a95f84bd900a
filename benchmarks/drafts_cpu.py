"""Measures drafts on the bundled model: tokens per second with and without them, on text that repeats and not.

    python -m benchmarks.drafts_cpu

The two engines answer the same prompts one after the other, several times. Seconds are those that this process
computed, so that other work on the machine does not count. Their answers are compared, too: they are the same.
"""

import random
import statistics
import time
from collections.abc import Sequence

from facet import LLM, SamplingParams
from facet.offline import RequestOutput

NUM_TURNS = 3
GREEDY = SamplingParams(temperature=0.0, max_tokens=160)
SCAN = {
    "type": "function",
    "function": {
        "name": "regex_scan",
        "description": "Scan text with a regular expression and return every match.",
        "parameters": {
            "type": "object",
            "properties": {"pattern": {"type": "string", "description": "The regular expression"}},
            "required": ["pattern"],
        },
    },
}
WORDS = (
    *("red", "green", "copper", "silver", "river", "stone", "paper", "window", "garden", "market", "letter", "number"),
    *("morning", "winter", "summer", "table", "bridge", "yellow", "story", "little", "street", "people", "water"),
    *("circle", "doctor", "engine", "music", "planet", "orange", "ticket", "village", "corner"),
)


def copying() -> list[str]:
    choose = random.Random(0)
    patterns = ["|".join(choose.sample(WORDS, 8)) for _ in range(4)]
    return [f'Use regex_scan with the pattern "{pattern}".' for pattern in patterns]


def free() -> list[str]:
    return ["Tell me a short story.", "What is Facet?", "What is twelve plus thirty?"]


def answer(
    llm: LLM, prompts: Sequence[str], tools: list[dict[str, object]] | None
) -> tuple[float, list[RequestOutput]]:
    """Tokens per second of this process's own time, one request at a time."""
    start = time.process_time()
    outputs = [
        llm.chat([{"role": "user", "content": prompt}], GREEDY, tools=tools, use_tqdm=False)[0] for prompt in prompts
    ]
    seconds = time.process_time() - start
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds, outputs


def main() -> None:
    plain = LLM(device="cpu", show_progress=False)
    drafting = LLM(device="cpu", show_progress=False, speculative_config={"method": "suffix"})
    for name, prompts, tools in (("copying into a tool call", copying(), [SCAN]), ("free text", free(), None)):
        ratios, speeds = [], []
        for _ in range(NUM_TURNS):
            off, expected = answer(plain, prompts, tools)
            on, got = answer(drafting, prompts, tools)
            assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in expected]
            ratios.append(on / off)
            speeds.append((off, on))
        off, on = (statistics.median(side) for side in zip(*speeds, strict=True))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{got[0].outputs[0].text!r:.100}")
        print(f"{name}: {off:.0f} tok/s off, {on:.0f} on, {statistics.median(ratios):.2f} times ({spread})")
    drafts = drafting.stats().drafts
    print(f"{drafts.num_accepted} of {drafts.num_drafts} drafts accepted, in {drafts.num_runs} steps")


if __name__ == "__main__":
    main()
