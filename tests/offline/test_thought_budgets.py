"""Five hundred requests with budgets of their own, all at once, on the bundled model: thoughts end, answers follow."""

import random
import re
from dataclasses import replace

from facet import LLM, SamplingParams, StructuredOutputsParams
from facet.offline import CompletionOutput
from facet.offline.prompts import Prompt
from facet.thoughts import ThoughtCounter, ThoughtTokens

NUM_CHATS, NUM_TEXTS = 420, 80
ASKED = ["What is Facet?", "What is two plus five?", "Tell me a story.", "Sort these: pear, fig, apple."]
DIGITS = StructuredOutputsParams(regex="[0-9]{3}")


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


def test_five_hundred_budgets() -> None:
    llm = LLM(
        device="cpu", max_model_len=512, max_num_seqs=96, kv_cache_memory_bytes=12 << 20, show_progress=False, seed=1
    )
    tokenizer = llm.get_tokenizer()
    open_id, close_id = tokenizer.token_to_id("<|channel>"), tokenizer.token_to_id("<channel|>")
    assert open_id is not None
    assert close_id is not None
    ends = tuple(tokenizer.token_to_id(text) for text in ("<eos>", "<turn|>", "<|turn>", "<|tool_response>"))

    chats = make_settings(NUM_CHATS, close_id)
    messages = [[{"role": "user", "content": ASKED[index % len(ASKED)]}] for index in range(NUM_CHATS)]
    outputs = llm.chat(messages, chats, chat_template_kwargs={"enable_thinking": True}, use_tqdm=False)
    texts = make_settings(NUM_TEXTS, close_id)
    prompts: list[Prompt] = [f"<|turn>model\n<|channel>thought\n{asked}" for asked in ASKED] * (NUM_TEXTS // len(ASKED))
    # A grammar binds a text from its first token on, so there is none for those that begin in a thought.
    texts = [replace(settings, structured_outputs=None) for settings in texts]
    outputs += llm.generate(prompts, texts, use_tqdm=False)

    num_closed = 0
    for index, (output, settings) in enumerate(zip(outputs, [*chats, *texts], strict=True)):
        is_open = index >= NUM_CHATS
        thought = ThoughtTokens(
            open_id=open_id,
            close_id=close_id,
            turn_end_ids=tuple(end for end in ends if end is not None),
            is_open=is_open,
        )
        for answer in output.outputs:
            num_closed += check(answer, settings, thought) == settings.thinking_token_budget
            if settings.thinking_token_budget == 0 and not is_open:
                assert open_id not in answer.token_ids
                assert answer.reply is not None
                assert answer.reply.reasoning is None
            if settings.structured_outputs is not None:
                assert answer.reply is not None
                assert re.fullmatch("[0-9]{3}", answer.reply.content or ""), answer.text
                assert answer.finish_reason == "stop"
    assert num_closed > 300
    assert llm.stats().num_preemptions > 0
    llm.close()
