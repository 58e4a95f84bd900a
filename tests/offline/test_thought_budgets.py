"""Requests with budgets of their own, many at once, on the bundled model: thoughts end, answers follow.

FACET_NUM_BUDGETS=500 tries as many requests.
"""

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from facet import LLM, SamplingParams, StructuredOutputsParams
from facet.offline import CompletionOutput
from facet.offline.prompts import Prompt
from facet.thoughts import ThoughtCounter, ThoughtTokens

NUM_REQUESTS = int(os.environ.get("FACET_NUM_BUDGETS", "60"))
NUM_TEXTS = NUM_REQUESTS // 5
NUM_CHATS = NUM_REQUESTS - NUM_TEXTS
ASKED = ["What is Facet?", "What is two plus five?", "Tell me a story.", "Sort these: pear, fig, apple."]
DIGITS = StructuredOutputsParams(regex="[0-9]{3}")


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORECAST = {"type": "function", "function": {"name": "forecast", "parameters": SCHEMA}}
# What constrains an answer behind its thought, besides `structured_outputs`.
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}},
    "required tool": {"tools": [FORECAST], "tool_choice": "required", "parallel_tool_calls": False},
    "named tool": {"tools": [FORECAST], "tool_choice": {"type": "function", "function": {"name": "forecast"}}},
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """With too little memory for all that may run at once."""
    llm = LLM(
        device="cpu", max_model_len=512, max_num_seqs=96, kv_cache_memory_bytes=4 << 20, show_progress=False, seed=1
    )
    yield llm
    llm.close()


def make_thought(llm: LLM, *, is_open: bool = False) -> ThoughtTokens:
    find = llm.get_tokenizer().token_to_id
    open_id, close_id = find("<|channel>"), find("<channel|>")
    ends = [find(text) for text in ("<eos>", "<turn|>", "<|turn>", "<|tool_response>")]
    assert open_id is not None
    assert close_id is not None
    turn_end_ids = tuple(end for end in ends if end is not None)
    return ThoughtTokens(open_id=open_id, close_id=close_id, turn_end_ids=turn_end_ids, is_open=is_open)


def make_settings(count: int, close_id: int) -> list[SamplingParams]:
    """Most never close a thought by themselves; every fourth may, every fifth is bound by a grammar."""
    choose = random.Random(count)
    return [
        SamplingParams(
            n=2 if index % 20 == 0 else 1,
            temperature=1.0,
            seed=index,
            logit_bias=None if index % 4 == 0 else {close_id: -100.0},
            structured_outputs=DIGITS if index % 5 == 0 else None,
            thinking_token_budget=choose.choice([0, 1, 2, choose.randrange(10)]),
            max_tokens=16,
            loop_guard=False,
        )
        for index in range(count)
    ]


def check(answer: CompletionOutput, settings: SamplingParams, thought: ThoughtTokens) -> int:
    """How many of the answer's thought tokens there are, if its thought was closed for it."""
    budget = settings.thinking_token_budget
    assert budget is not None
    counter = ThoughtCounter(thought)
    num_forced = None
    for place, token_id in enumerate(answer.token_ids):
        if counter.count == budget:
            assert token_id == thought.close_id if counter.is_open else token_id != thought.open_id
            if counter.is_open:
                num_forced = counter.count
                assert place + 1 < len(answer.token_ids), "an answer follows"
        else:
            assert settings.logit_bias is None or token_id != thought.close_id, "it closed early"
        counter.push(token_id)
    assert answer.num_reasoning_tokens == counter.count <= budget
    return -1 if num_forced is None else num_forced


def test_many_budgets(llm: LLM) -> None:
    close_id = make_thought(llm).close_id
    chats = make_settings(NUM_CHATS, close_id)
    messages = [[{"role": "user", "content": ASKED[index % len(ASKED)]}] for index in range(NUM_CHATS)]
    outputs = llm.chat(messages, chats, chat_template_kwargs={"enable_thinking": True}, use_tqdm=False)
    texts = make_settings(NUM_TEXTS, close_id)
    asked = [ASKED[index % len(ASKED)] for index in range(NUM_TEXTS)]
    prompts: list[Prompt] = [f"<|turn>model\n<|channel>thought\n{question}" for question in asked]
    # A grammar binds a text from its first token on, so there is none for those that begin in a thought.
    texts = [replace(settings, structured_outputs=None) for settings in texts]
    outputs += llm.generate(prompts, texts, use_tqdm=False)

    num_closed = 0
    for index, (output, settings) in enumerate(zip(outputs, [*chats, *texts], strict=True)):
        thought = make_thought(llm, is_open=index >= NUM_CHATS)
        for answer in output.outputs:
            num_closed += check(answer, settings, thought) == settings.thinking_token_budget
            if settings.thinking_token_budget == 0 and not thought.is_open:
                assert thought.open_id not in answer.token_ids
                assert answer.reply is not None
                assert answer.reply.reasoning is None
            if settings.structured_outputs is not None:
                assert answer.reply is not None
                assert re.fullmatch("[0-9]{3}", answer.reply.content or ""), answer.text
                assert answer.finish_reason == "stop"
    assert num_closed > NUM_REQUESTS // 2
    assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("budget", [None, 0, 2])
def test_a_grammar_binds_a_text_that_begins_in_a_thought(llm: LLM, budget: int | None) -> None:
    sampling = SamplingParams(temperature=0, structured_outputs=DIGITS, thinking_token_budget=budget)
    (output,) = llm.generate("<|turn>model\n<|channel>thought\nHow many?", sampling, use_tqdm=False)
    (answer,) = output.outputs
    assert re.fullmatch("[0-9]{3}", answer.text), answer.error
    assert (answer.finish_reason, answer.num_reasoning_tokens) == ("stop", 0)


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_what_constrains_an_answer_begins_behind_the_thought(llm: LLM, constraint: dict[str, Any]) -> None:
    thought = make_thought(llm)
    num_preempted = llm.stats().num_preemptions
    # Longer than with bare texts: the prompts name tools, and three answers each must not fit all together.
    count = 12
    many = [
        replace(settings, n=4 if index % 2 == 0 else 1, structured_outputs=None, max_tokens=64)
        for index, settings in enumerate(make_settings(count, thought.close_id))
    ]
    messages = [[{"role": "user", "content": ASKED[index % len(ASKED)]}] for index in range(count)]
    outputs = llm.chat(messages, many, chat_template_kwargs={"enable_thinking": True}, use_tqdm=False, **constraint)
    num_closed = 0
    for output, settings in zip(outputs, many, strict=True):
        assert len(output.outputs) == settings.n
        for answer in output.outputs:
            num_closed += check(answer, settings, thought) == settings.thinking_token_budget
            reply = answer.reply
            assert reply is not None
            if "response_format" in constraint:
                assert answer.finish_reason == "stop"
                written = reply.content or ""
            else:
                assert answer.finish_reason == "tool_calls"
                (call,) = reply.tool_calls
                assert call.function.name == "forecast"
                written = call.function.arguments
            values = json.loads(written)
            assert sorted(values) == ["city", "days"]
            assert values["city"] in ("Paris", "Oslo")
            assert values["days"] in range(1, 10)
    assert num_closed > count // 2
    assert llm.stats().num_preemptions > num_preempted
