"""Asks a server the same things alone and in company, and compares the answers byte for byte.

    python -m benchmarks.company_http                                   # the bundled model, with --batch-invariant
    python -m benchmarks.company_http --serve-flags --no-batch-invariant
    python -m benchmarks.company_http --num-prompts 600 --at-once 5 16 64 --serve-flags --batch-invariant --device cuda

Prompts are short and long, some begin alike, half are sampled with a seed. First each is asked alone, then all of them
again in random order with so many under way at once, of which a share is cancelled in the middle. Texts, reasons to end
and the numbers of log-probabilities have to be the same; what differs is counted and the first few are shown.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.running_server import URL, running
from facet.bundled_model import find_bundled_model

WORDS = ("blue", "river", "seven", "under", "lamp", "quick", "stone", "paper", "north", "garden", "music", "wheel")
QUESTIONS = ("What is the capital of France?", "Count from one to ten.", "Say this again:", "Which word comes last?")
_NUM_SHOWN = 3


@dataclass(frozen=True)
class Answer:
    text: str
    finish_reason: str
    logprobs: str  # as JSON


def make_prompts(count: int, seed: int) -> list[dict[str, Any]]:
    """Bodies of requests."""
    source = random.Random(seed)
    shared = " ".join(source.choices(WORDS, k=150))
    prompts = []
    for number in range(count):
        own = " ".join(source.choices(WORDS, k=source.choice((0, 1, 5, 20, 80, 300))))
        text = f"{shared} {own}" if source.random() < 0.3 else own
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"{source.choice(QUESTIONS)} {text}".strip()}],
            "max_tokens": source.choice((1, 4, 16, 48)),
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 3,
            "temperature": 0.0,
        }
        if number % 2:
            body |= {"temperature": 1.0, "seed": number, "top_p": source.choice((1.0, 0.9))}
        prompts.append(body)
    return prompts


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    response = await client.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    choice = response.json()["choices"][0]
    return Answer(choice["message"]["content"] or "", choice["finish_reason"], json.dumps(choice["logprobs"]))


async def ask_and_leave(client: httpx.AsyncClient, body: dict[str, Any], num_lines: int) -> None:
    """Hang up after some lines of a stream."""
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        response.raise_for_status()
        lines = response.aiter_lines()
        for _ in range(num_lines):
            if await anext(lines, None) is None:
                return


async def ask_together(
    client: httpx.AsyncClient, prompts: Sequence[dict[str, Any]], at_once: int, cancelled: float, seed: int
) -> dict[int, Answer]:
    """The answers of those that were not cancelled, by their place."""
    source, seats = random.Random(seed), asyncio.Semaphore(at_once)
    answers: dict[int, Answer] = {}

    async def one(place: int, num_lines: int | None) -> None:
        async with seats:
            if num_lines is None:
                answers[place] = await ask(client, prompts[place])
            else:
                await ask_and_leave(client, prompts[place], num_lines)

    order = source.sample(range(len(prompts)), len(prompts))
    async with asyncio.TaskGroup() as group:
        for place in order:
            group.create_task(one(place, source.randint(1, 12) if source.random() < cancelled else None))
    return answers


def show_difference(body: dict[str, Any], alone: Answer, together: Answer) -> None:
    what = "text" if alone.text != together.text else "log-probabilities or reason to end"
    print(f"    another {what}: {json.dumps(body)[:100]} ... {alone.text[:60]!r} and {together.text[:60]!r}")


async def compare(options: argparse.Namespace) -> int:
    """How many answers differ."""
    prompts = make_prompts(options.num_prompts, options.seed)
    num_different = 0
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=URL, timeout=600, limits=limits) as client:
        alone = [await ask(client, body) for body in prompts]
        print(f"{len(alone)} answers alone, {sum(len(answer.text) for answer in alone)} characters", flush=True)
        for at_once in options.at_once:
            together = await ask_together(client, prompts, at_once, options.cancelled, options.seed + at_once)
            different = [place for place, answer in sorted(together.items()) if answer != alone[place]]
            texts = sum(together[place].text != alone[place].text for place in different)
            print(
                f"{at_once} at once: {len(together)} answers, {len(prompts) - len(together)} cancelled, "
                f"{len(different)} differ, {texts} of them in their text",
                flush=True,
            )
            for place in different[:_NUM_SHOWN]:
                show_difference(prompts[place], alone[place], together[place])
            num_different += len(different)
    return num_different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(find_bundled_model()))
    parser.add_argument("--num-prompts", type=int, default=60)
    parser.add_argument("--at-once", type=int, nargs="+", default=[5, 16])
    parser.add_argument("--cancelled", type=float, default=0.3, help="share of requests that are cancelled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve-flags", nargs=argparse.REMAINDER, default=["--batch-invariant"])
    options = parser.parse_args()
    with running(options.model, "--load-format", "auto", *options.serve_flags):
        num_different = asyncio.run(compare(options))
    raise SystemExit(1 if num_different else 0)


if __name__ == "__main__":
    main()
