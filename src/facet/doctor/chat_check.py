"""Checks chats with tools: rendered, answered and parsed, alone and together.

A small or random model seldom calls a tool, so scripted replies are parsed as well. Together, all parsers exist at once
and get their tokens in turns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from facet.chat import ChatTemplate, Delta, make_reply_parser
from facet.doctor.engines import Setup, make_engine, run_alone, run_together
from facet.doctor.findings import Finding, skipped
from facet.doctor.patient import Patient, compare
from facet.doctor.workload import NUM_BEST, widest_window
from facet.errors import RequestError
from facet.prompts import AskedModel, ChatQuestion, prepare
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer

QUESTIONS = ("What is the weather in Paris?", "And in Oslo?", "Compare Rome with Lima.", "Which is coldest?")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
# What a model might say. A vocabulary without these control tokens reads them as text, which is as good here.
SCRIPTED = (
    '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
    "<|channel>thought\nOslo is in the north.<channel|>It is cold in Oslo.",
    'Both:<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>'
    '<|tool_call>call:get_weather{city:<|"|>Lima<|"|>}<tool_call|>',
    "Oslo, by far.",
)


def check_chat(patient: Patient) -> Iterator[Finding]:
    name, folder = "chat with tools", patient.folder
    if not (folder / "tokenizer.json").is_file():
        yield skipped(name, "the model's folder has no tokenizer.json")
        return
    tokenizer = Tokenizer.from_folder(folder)
    yield _check_parsers(
        tokenizer, [tokenizer.encode(text, add_special_tokens=False) for text in SCRIPTED], "replies parsed"
    )
    template = ChatTemplate.from_folder(folder, tokenizer)
    if template is None:
        yield skipped(name, "the model has no chat template")
        return
    try:
        requests = _requests(patient, tokenizer, template)
    except RequestError as error:
        yield skipped(name, str(error))
        return
    longest = max(len(request.prompt_token_ids) for request in requests) + patient.effort.num_tokens
    if longest > patient.model.num_positions:
        yield skipped(name, f"a chat of {longest} tokens is longer than the context; raise --max-model-len")
        return
    alone = run_alone(make_engine(patient.model, patient.baseline), requests)
    setup = Setup(
        max_num_seqs=len(requests),
        chunk=widest_window(patient.model.spec) + 5,
        prefix_caching=True,
        fast_prefill=True,
        overlapped=True,
    )
    engine = make_engine(patient.model, setup)
    yield compare(name, alone, run_together(engine, requests), patient.limits)
    replies = [[token.token_id for token in transcript.tokens] for transcript in alone.values()]
    known = [[token_id for token_id in reply if token_id < tokenizer.vocab_size] for reply in replies]
    yield _check_parsers(tokenizer, known, "chats parsed")


def _requests(patient: Patient, tokenizer: Tokenizer, template: ChatTemplate) -> list[Request]:
    """Requests as a server makes them."""
    asked = AskedModel(
        max_model_len=patient.model.num_positions, eos_token_ids=(), tokenizer=tokenizer, template=template
    )
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=patient.effort.num_tokens,
        ignore_eos=True,
        logprobs=min(NUM_BEST, patient.model.spec.vocab_size),
    )
    requests = []
    for index, question in enumerate(QUESTIONS):
        messages = [{"role": "user", "content": question}]
        prepared = prepare(
            ChatQuestion(messages=messages, tools=TOOLS, sampling=sampling), asked, request_ids=[f"chat-{index}"]
        )
        # The engines of an examination have no grammars; calls are as the model writes them.
        requests += [replace(request, grammar=None) for request in prepared.requests]
    return requests


def _check_parsers(tokenizer: Tokenizer, replies: Sequence[Sequence[int]], name: str) -> Finding:
    alone = [_parse(tokenizer, [reply])[0] for reply in replies]
    together = _parse(tokenizer, replies)
    wrong = [index for index, (mine, theirs) in enumerate(zip(alone, together, strict=True)) if mine != theirs]
    note = f"{len(wrong)} of {len(replies)} replies parsed differently together" if wrong else f"{len(replies)} replies"
    return Finding(check=name, status="fail" if wrong else "pass", note=note)


def _parse(tokenizer: Tokenizer, replies: Sequence[Sequence[int]]) -> list[list[Delta]]:
    """Parses each reply with a parser of its own, a token of each in turn."""
    parsers = [
        make_reply_parser(
            tokenizer,
            SamplingParams(max_tokens=None),
            tools_enabled=True,
            new_call_id=lambda: "call",
        )
        for _ in replies
    ]
    parsed: list[list[Delta]] = [[] for _ in replies]
    for place in range(max(map(len, replies), default=0)):
        for parser, deltas, reply in zip(parsers, parsed, replies, strict=True):
            if place < len(reply):
                deltas += parser.push(reply[place])
    for parser, deltas in zip(parsers, parsed, strict=True):
        deltas += parser.finish(is_complete=True)
    return parsed
