"""Whatever is asked means the same over HTTP and in Python: the same requests, the same refusals, the same answers."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from facet import LoRARequest
from facet.adapter import PlacedAdapter
from facet.grammar_spec import GrammarSpec
from facet.media_span import MediaSpan
from facet.prepared_media import PreparedMedia
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtTokens
from tests.chat.conversations import RICH_TOOL, WEATHER_TOOL
from tests.prompts.doors import CONTEXT, Doors, Refusal, differences, open_doors, write_model_folder
from tests.server.conftest import END

ASK = [{"role": "user", "content": "Weather in Paris?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TAGGED = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
REGEX = {"structured_outputs": {"regex": "a"}}
LONG = "one two three four five six seven eight nine ten " * 12
THINKING = {"enable_thinking": True}
NOT_THINKING = {"enable_thinking": False}
LOOSE_TOOL = {"type": "function", "function": {"name": "anything", "parameters": {"type": "object", "not": {}}}}
STRICT_TOOL = {"type": "function", "function": {**LOOSE_TOOL["function"], "strict": True}}  # type: ignore[dict-item]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather "}, {"type": "text", "text": "in Paris?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "The city is Paris.",
        "tool_calls": [{"id": "call_1", "function": {"name": "get_weather", "arguments": '{"a": 2.50}'}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "clear"},
    {"role": "user", "name": "Ada", "content": "And now?"},
]

SWAPPED = [
    *ASK,
    {
        "role": "assistant",
        "tool_calls": [{"id": name, "function": {"name": "get_weather", "arguments": "{}"}} for name in "ab"],
    },
    *({"role": "tool", "tool_call_id": name, "content": f"result {name}"} for name in "ba"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("both"))


@pytest.fixture(scope="module")
def doors(folder: Path) -> Iterator[Doors]:
    with open_doors(folder) as doors:
        yield doors


# What is asked: the fields of the question, and the settings of its `SamplingParams` (None: none are given).
Case = tuple[dict[str, Any], dict[str, Any] | None]
TEXT: dict[str, Any] = {"prompt": "The weather in Paris"}
CHAT: dict[str, Any] = {"messages": ASK}
TOOLS: dict[str, Any] = {"messages": ASK, "tools": [WEATHER_TOOL, RICH_TOOL]}

REQUESTS: dict[str, Case] = {
    # Prompts
    "text": (TEXT, {}),
    "markers in a text": ({"prompt": "a<turn|>b"}, {}),
    "markers split in a text": ({"prompt": "a<turn|>b", "split_special_tokens": True}, {}),
    "markers in a conversation": ({"messages": [{"role": "user", "content": "a<turn|>b"}]}, {}),
    "text, nothing given": (TEXT, None),
    "text in a list": ({"prompt": ["The weather"]}, {}),
    "several texts": ({"prompt": ["one", "two three", "four"]}, {"max_tokens": 3}),
    "special tokens written out": ({"prompt": "<|turn>user\none<turn|>"}, {}),
    "unicode": ({"prompt": "Grüße, 今日は 🙂"}, {}),
    "an empty text": ({"prompt": ""}, {}),
    "token ids": ({"prompt": [5, 300, 301]}, {}),
    "several lists of token ids": ({"prompt": [[5, 300], [301]]}, {}),
    "priority": ({"prompt": "one", "priority": 3}, {}),
    # Sampling settings
    "greedy": (TEXT, {"temperature": 0}),
    "top_p, top_k, min_p": (TEXT, {"top_p": 0.5, "top_k": 7, "min_p": 0.1}),
    "top_k switched off": (TEXT, {"top_k": -1}),
    "penalties": (TEXT, {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2}),
    "logit bias": (TEXT, {"logit_bias": {300: 2.5, 17: -100}}),
    "bad words": (TEXT, {"bad_words": ["three", " four"]}),
    "bad words in a chat": (CHAT, {"bad_words": ["Paris"]}),
    "allowed ids": (TEXT, {"allowed_token_ids": [300, 301, 302]}),
    "least and most tokens": (TEXT, {"min_tokens": 2, "max_tokens": 9}),
    "ends ignored": (TEXT, {"ignore_eos": True, "max_tokens": 2}),
    "one stop string": (TEXT, {"stop": "three"}),
    "stop strings": (CHAT, {"stop": ["three", "four"], "include_stop_str_in_output": True}),
    "stop ids": (TEXT, {"stop_token_ids": [300]}),
    "a seed": (TEXT, {"seed": 7}),
    "seed -1": (TEXT, {"seed": -1}),
    "two answers": (TEXT, {"n": 2}),
    "three answers with a seed": (CHAT, {"n": 3, "seed": 11}),
    "answers to each of two prompts": ({"prompt": ["one", "two"]}, {"n": 2, "seed": -3}),
    "log-probabilities": (TEXT, {"logprobs": 2}),
    "log-probabilities of a chat": (CHAT, {"logprobs": 3}),
    "prompt log-probabilities": (TEXT, {"prompt_logprobs": 1}),
    "prompt log-probabilities of the first of several": (TEXT, {"prompt_logprobs": 0, "n": 3}),
    "a budget for thoughts": (CHAT, {"thinking_token_budget": 9}),
    "a budget for thoughts in a text": (TEXT, {"thinking_token_budget": 9}),
    "a budget in a thought that is open": ({"prompt": "<|channel>thought\nSo"}, {"thinking_token_budget": 0}),
    "a budget as long as the context": (CHAT, {"thinking_token_budget": CONTEXT}),
    "no thoughts": ({**CHAT, "chat_template_kwargs": THINKING}, {"thinking_token_budget": 0}),
    "loops go on": (CHAT, {"loop_guard": False}),
    "a rule for loops": (TEXT, {"repetition_detection": {"max_pattern_size": 9, "min_count": 3}}),
    "no rule for loops": (TEXT, {"repetition_detection": {"max_pattern_size": 0}}),
    "special tokens shown": (CHAT, {"skip_special_tokens": False, "spaces_between_special_tokens": False}),
    # Lengths
    "cut from the left": ({"prompt": LONG}, {"truncate_prompt_tokens": 5}),
    "token ids cut": ({"prompt": list(range(280, 300))}, {"truncate_prompt_tokens": 5}),
    "a chat cut": ({"messages": [{"role": "user", "content": LONG}]}, {"truncate_prompt_tokens": 20}),
    "cut to the context": ({"prompt": LONG * 3}, {"truncate_prompt_tokens": -1, "max_tokens": 100}),
    "cut to the context, which max_tokens fills": ({"prompt": LONG}, {"truncate_prompt_tokens": -1, "max_tokens": 900}),
    "a default that fits the rest of the context": ({"prompt": [300] * (CONTEXT - 5)}, None),
    "a default where the context is full": ({"prompt": [300] * CONTEXT}, None),
    "more asked for than fits": ({"prompt": [300] * (CONTEXT - 5)}, {"max_tokens": 16}),
    # Conversations
    "chat": (CHAT, {}),
    "chat, nothing given": (CHAT, None),
    "turns of every kind": ({"messages": TURNS}, {}),
    "results in another order than their calls": ({"messages": SWAPPED}, {}),
    "a developer's turn": ({"messages": [{"role": "developer", "content": "Be brief."}, *ASK]}, {}),
    "no opening of a reply": ({**CHAT, "add_generation_prompt": False}, {}),
    "thinking on": ({**CHAT, "chat_template_kwargs": THINKING}, {}),
    "thinking off": ({**CHAT, "chat_template_kwargs": NOT_THINKING}, {}),
    "thinking by effort": ({**CHAT, "reasoning_effort": "high"}, {}),
    "no thinking by effort": ({**CHAT, "reasoning_effort": "none"}, {}),
    "kwargs over effort": ({**CHAT, "reasoning_effort": "high", "chat_template_kwargs": NOT_THINKING}, {}),
    "a template variable": ({**CHAT, "chat_template_kwargs": {"greeting": "hi"}}, {}),
    "documents": ({**CHAT, "documents": [{"title": "a", "text": "b"}]}, {}),
    # Tools
    "tools": (TOOLS, {}),
    "tools, auto": ({**TOOLS, "tool_choice": "auto"}, {}),
    "tools, none": ({**TOOLS, "tool_choice": "none"}, {}),
    "tools, required": ({**TOOLS, "tool_choice": "required"}, {}),
    "tools, named": ({**TOOLS, "tool_choice": NAMED}, {}),
    "tools, one call": ({**TOOLS, "parallel_tool_calls": False}, {}),
    "tools, one call required": ({**TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, {}),
    "tools and a format": ({**TOOLS, "response_format": AS_SCHEMA}, {}),
    "tools and thinking": ({**TOOLS, "chat_template_kwargs": THINKING}, {}),
    "tools required after thinking": ({**TOOLS, "tool_choice": "required", "reasoning_effort": "low"}, {}),
    "no tools, none": ({**CHAT, "tool_choice": "none"}, {}),
    "no tools, auto": ({**CHAT, "tools": [], "tool_choice": "auto"}, {}),
    "a schema that cannot be enforced": ({**CHAT, "tools": [LOOSE_TOOL]}, {}),
    "tools and several answers": (TOOLS, {"n": 2, "seed": 5}),
    # The form of the answer
    "format text": ({**CHAT, "response_format": {"type": "text"}}, {}),
    "format JSON": ({**CHAT, "response_format": {"type": "json_object"}}, {}),
    "format schema": ({**CHAT, "response_format": AS_SCHEMA}, {}),
    "format schema after thinking": ({**CHAT, "response_format": AS_SCHEMA, "chat_template_kwargs": THINKING}, {}),
    "format schema and tools not offered": ({**TOOLS, "tool_choice": "none", "response_format": AS_SCHEMA}, {}),
    "structured: schema": (TEXT, {"structured_outputs": {"json": SCHEMA}}),
    "structured: schema as text": (TEXT, {"structured_outputs": {"json": '{"type": "object"}'}}),
    "structured: regex": (TEXT, {"structured_outputs": {"regex": "[a-z]+"}}),
    "structured: choice": (TEXT, {"structured_outputs": {"choice": ["yes", "no"]}}),
    "structured: grammar": (TEXT, {"structured_outputs": {"grammar": 'root ::= "a"+'}}),
    "structured: schema, white space": (TEXT, {"structured_outputs": {"json": SCHEMA, "any_whitespace": True}}),
    "format schema, white space": (
        {**CHAT, "response_format": AS_SCHEMA}, {"structured_outputs": {"any_whitespace": True}}
    ),
    "structured: JSON": (TEXT, {"structured_outputs": {"json_object": True}}),
    "structured: several answers": ({"prompt": ["a", "b"]}, {"n": 2, "structured_outputs": {"regex": "a+"}}),
    "structured: chat": (CHAT, {"structured_outputs": {"json": SCHEMA}}),
    "structured: chat after thinking": ({**CHAT, "reasoning_effort": "low"}, {"structured_outputs": {"regex": "a"}}),
}  # fmt: skip

# The same, and the field that is to be changed.
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, str]] = {
    "temperature": (TEXT, {"temperature": -1}, "temperature"),
    "top_p": (CHAT, {"top_p": 0}, "top_p"),
    "n": (TEXT, {"n": 0}, "n"),
    "several greedy answers": (CHAT, {"n": 2, "temperature": 0}, "n"),
    "least above most": (TEXT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    "max_tokens": (CHAT, {"max_tokens": 0}, "max_tokens"),
    "an empty stop string": (TEXT, {"stop": [""]}, "stop"),
    "an empty bad word": (TEXT, {"bad_words": [""]}, "bad_words"),
    "no id allowed": (TEXT, {"allowed_token_ids": []}, "allowed_token_ids"),
    "truncation": (TEXT, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    "a budget below nothing": (CHAT, {"thinking_token_budget": -1}, "thinking_token_budget"),
    "a budget beyond the context": (TEXT, {"thinking_token_budget": CONTEXT + 1}, "thinking_token_budget"),
    "a loop of one": (
        TEXT,
        {"repetition_detection": {"max_pattern_size": 9, "min_count": 1}},
        "repetition_detection.min_count",
    ),
    "loops of no length": (
        CHAT,
        {"repetition_detection": {"max_pattern_size": 3, "min_pattern_size": 4, "min_count": 2}},
        "repetition_detection.min_pattern_size",
    ),
    "loops too long to look for": (
        CHAT,
        {"repetition_detection": {"max_pattern_size": 257, "min_count": 2}},
        "repetition_detection.max_pattern_size",
    ),
    "loops below nothing": (
        TEXT,
        {"repetition_detection": {"max_pattern_size": 9, "min_count": -2}},
        "repetition_detection.min_count",
    ),
    "no messages": ({"messages": []}, {}, "messages"),
    "a role": ({"messages": [{"role": "judge", "content": "x"}]}, {}, "messages"),
    "no content": ({"messages": [{"role": "user"}]}, {}, "messages"),
    "a picture": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {}, "messages"),
    "a result of no call": ({"messages": [{"role": "tool", "content": "x"}]}, {}, "messages"),
    "a tool's type": ({**CHAT, "tools": [{"type": "search"}]}, {}, "tools"),
    "a tool's name": ({**CHAT, "tools": [{"type": "function", "function": {"name": "a b"}}]}, {}, "tools"),
    "a tool twice": ({**CHAT, "tools": [WEATHER_TOOL, WEATHER_TOOL]}, {}, "tools"),
    "a strict schema that cannot be enforced": ({**CHAT, "tools": [STRICT_TOOL]}, {}, "tools"),
    "a choice": ({**TOOLS, "tool_choice": "always"}, {}, "tool_choice"),
    "a choice that is no tool": ({**CHAT, "tools": [RICH_TOOL], "tool_choice": NAMED}, {}, "tool_choice"),
    "required without tools": ({**CHAT, "tool_choice": "required"}, {}, "tool_choice"),
    "an effort": ({**CHAT, "reasoning_effort": "much"}, {}, "reasoning_effort"),
    "thinking, but how": ({**CHAT, "chat_template_kwargs": {"enable_thinking": 1}}, {}, "chat_template_kwargs"),
    "a variable's name": ({**CHAT, "chat_template_kwargs": {"messages": 1}}, {}, "chat_template_kwargs"),
    "continuing a message": ({**CHAT, "continue_final_message": True}, {}, "continue_final_message"),
    "a format": ({**CHAT, "response_format": {"type": "xml"}}, {}, "response_format"),
    "a format without a schema": ({**CHAT, "response_format": {"type": "json_schema"}}, {}, "response_format"),
    "a tagged format and tools": ({**TOOLS, "response_format": TAGGED}, {}, "response_format"),
    "a format and a structure": ({**CHAT, "response_format": AS_SCHEMA}, REGEX, "structured_outputs"),
    "a structure and tools": (TOOLS, REGEX, "structured_outputs"),
    "no structure": (TEXT, {"structured_outputs": {}}, "structured_outputs"),
    "two structures": (TEXT, {"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
    "a structural tag": (TEXT, {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs"),
    "white space of no JSON": (TEXT, {"structured_outputs": {"any_whitespace": True}}, "structured_outputs"),
    "no choices": (TEXT, {"structured_outputs": {"choice": []}}, "structured_outputs"),
    "a schema that is no JSON": (TEXT, {"structured_outputs": {"json": "{"}}, "structured_outputs"),
    "a schema's keyword": (CHAT, {"structured_outputs": {"json": {"not": {}}}}, "structured_outputs"),
    "an empty choice of schemas": (TEXT, {"structured_outputs": {"json": {"anyOf": []}}}, "structured_outputs"),
    "a pattern": (TEXT, {"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs"),
}  # fmt: skip


@pytest.mark.parametrize(("ask", "sampling"), REQUESTS.values(), ids=REQUESTS)
def test_the_same_requests(doors: Doors, ask: dict[str, Any], sampling: dict[str, Any] | None) -> None:
    for answer in (doors.ask_python(ask, sampling), doors.ask_http(ask, sampling)):
        assert not isinstance(answer, Refusal), answer
    assert doors.python_engine.submitted, "nothing was sent, so nothing is compared"
    assert differences(doors.python_engine.submitted, doors.http_engine.submitted) == []


@pytest.mark.parametrize("name", ["text", "several texts", "chat", "answers to each of two prompts"])
def test_the_same_adapter(doors: Doors, name: str) -> None:
    ask, sampling = REQUESTS[name]
    doors.ask_python({**ask, "lora_request": LoRARequest("poet")}, sampling)
    doors.ask_http({**ask, "model": "poet"}, sampling)
    assert differences(doors.python_engine.submitted, doors.http_engine.submitted) == []
    assert {request.adapter for request in doors.http_engine.submitted} == {"poet"}


def test_the_questions_differ(doors: Doors) -> None:
    """Were a setting ignored by both APIs, the comparison above would not see it."""
    alike = {"text, nothing given", "seed -1", "chat, nothing given", "thinking off", "tools, auto"}
    alike |= {"tools, none", "format schema and tools not offered", "no tools, none", "no tools, auto", "format text"}
    seen: dict[tuple[Any, ...], str] = {}
    for name, (ask, sampling) in REQUESTS.items():
        doors.ask_python(ask, sampling)
        requests = tuple(replace(request, request_id="", arrival_time=0.0) for request in doors.python_engine.submitted)
        if name not in alike:
            assert requests not in seen, f"{name!r} sends what {seen[requests]!r} sends"
            seen[requests] = name


@pytest.mark.parametrize(("ask", "sampling", "field"), REFUSALS.values(), ids=REFUSALS)
def test_the_same_refusals(doors: Doors, ask: dict[str, Any], sampling: dict[str, Any] | None, field: str) -> None:
    refusal = doors.ask_python(ask, sampling)
    assert isinstance(refusal, Refusal)
    assert refusal.field == field
    assert doors.ask_http(ask, sampling) == refusal
    assert doors.python_engine.submitted == doors.http_engine.submitted == []


@pytest.mark.parametrize(
    "settings",
    [
        {"generation_config": "vllm"},
        {"override_generation_config": {"temperature": 0.3, "top_k": 5}},
        {"override_generation_config": {"max_new_tokens": 9}},
        {"default_chat_template_kwargs": {"enable_thinking": True}},
        {"loop_guard": False},
        {"structured_outputs_any_whitespace": True},
        {"default_thinking_token_budget": 11},
        {"chat_template": "{% for m in messages %}<|turn>{{ m.content }}{% endfor %}<|channel>thought\n"},
    ],
    ids=str,
)
def test_the_same_requests_under_other_settings(folder: Path, settings: dict[str, Any]) -> None:
    asked: list[Case] = [
        (TEXT, None),
        (TEXT, {"temperature": 0.5}),
        ({"prompt": [300] * (CONTEXT - 5)}, None),
        (CHAT, None),
        ({**CHAT, "response_format": AS_SCHEMA}, {"max_tokens": 7}),
        ({**CHAT, "chat_template_kwargs": NOT_THINKING}, {"top_k": 3}),
    ]
    with open_doors(folder, **settings) as doors:
        for ask, sampling in asked:
            doors.ask_python(ask, sampling)
            doors.ask_http(ask, sampling)
            assert doors.python_engine.submitted
            assert differences(doors.python_engine.submitted, doors.http_engine.submitted) == []


CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
THOUGHT = "<|channel>thought\nThe wind is light.\n<channel|>"
# What the model writes, the question, and its sampling settings.
ANSWERS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "text": ("one two three", TEXT, {}),
    "text up to a stop string": ("one two three", TEXT, {"stop": "two"}),
    "text with its stop string": ("one two three", TEXT, {"stop": "two", "include_stop_str_in_output": True}),
    "text up to a stop id": ("one two three", TEXT, {"stop_token_ids": [END]}),
    "text with its stop id": (
        "one two",
        TEXT,
        {"stop_token_ids": [END], "include_stop_str_in_output": True, "skip_special_tokens": False},
    ),
    "text cut by length": ("one two three", TEXT, {"max_tokens": 3}),
    "content": ("one two three", CHAT, {}),
    "a thought": (THOUGHT + "It is clear.", {**CHAT, "chat_template_kwargs": THINKING}, {}),
    "a thought alone": (THOUGHT, CHAT, {}),
    "a call": (CALL, TOOLS, {}),
    "a thought, words and two calls": (THOUGHT + "Let me see." + CALL + CALL, TOOLS, {}),
    "one call of two": (CALL + CALL, {**TOOLS, "parallel_tool_calls": False}, {}),
    "a call cut by length": (CALL, TOOLS, {"max_tokens": 12}),
    "a call nobody offered": (CALL, CHAT, {}),
    "a thought that opens twice": (THOUGHT + "one" + THOUGHT, CHAT, {}),
    "a thought cut by length": (THOUGHT, CHAT, {"max_tokens": 4}),
    "a text that thinks": (THOUGHT + "one", TEXT, {"max_tokens": 40}),
    "a text that thinks on": (
        "light.\n<channel|>one",
        {"prompt": "<|channel>thought\nThe wind is"},
        {"max_tokens": 40},
    ),
    "content up to a stop string": (THOUGHT + "one two three", CHAT, {"stop": "two"}),
    "several": ("one two", CHAT, {"n": 2}),
}


@pytest.mark.parametrize(("said", "ask", "sampling"), ANSWERS.values(), ids=ANSWERS)
def test_the_same_answers(doors: Doors, said: str, ask: dict[str, Any], sampling: dict[str, Any] | None) -> None:
    token_ids = [*doors.llm.get_tokenizer().encode(said, add_special_tokens=False), END]
    doors.say(lambda request: token_ids)
    (output,) = doors.ask_python(ask, sampling)
    response = doors.ask_http(ask, sampling)
    assert len(output.outputs) == len(response["choices"])
    num_reasoning_tokens = sum(completion.num_reasoning_tokens for completion in output.outputs)
    assert response["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning_tokens}
    assert (num_reasoning_tokens > 0) == ("channel" in said)
    for completion, choice in zip(output.outputs, response["choices"], strict=True):
        assert completion.finish_reason == choice["finish_reason"]
        assert completion.stop_reason == choice["stop_reason"]
        if "message" not in choice:
            assert completion.text == choice["text"]
            assert completion.reply is None
            continue
        message, reply = choice["message"], completion.reply
        assert (reply.role, reply.content, reply.reasoning) == ("assistant", message["content"], message["reasoning"])
        calls = [(call["type"], call["function"]) for call in message["tool_calls"]]
        mine = [(call.type, call.function) for call in reply.tool_calls]
        assert calls == [(kind, {"name": called.name, "arguments": called.arguments}) for kind, called in mine]


def test_a_conversation_goes_on_with_a_reply(doors: Doors) -> None:
    token_ids = [*doors.llm.get_tokenizer().encode(THOUGHT + CALL, add_special_tokens=False), END]
    doors.say(lambda request: token_ids)
    (output,) = doors.ask_python(TOOLS, {})
    reply = output.outputs[0].reply
    message = reply.as_message()
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    assert message["reasoning_content"] == reply.reasoning == "The wind is light."
    result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": "clear"}
    (output,) = doors.ask_python({**TOOLS, "messages": [*ASK, message, result]}, {})
    assert "<|tool_call>get_weather<tool_call|>" in output.prompt
    assert output.prompt.endswith("<|turn>tool\nclear<turn|>\n<|turn>model\n")


def test_a_difference_in_any_field_is_seen() -> None:
    request = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams())
    others = {
        "prompt_token_ids": (1, 2),
        "sampling": SamplingParams(top_k=2),
        "eos_token_ids": (1,),
        "priority": 1,
        "cache_salt": "x",
        "needs_sampled_token_on_host": True,
        "grammar": GrammarSpec(kind="json_object"),
        "thought": ThoughtTokens(open_id=1, close_id=2),
        "media": (MediaSpan(first=0, length=1, kind="image", content_key="a"),),
        "adapter": "poet",
        "placed_adapter": PlacedAdapter(1, "a"),
        "contents": (PreparedMedia(kind="image", content_key="a", num_tokens=1, arrays={}),),
    }
    assert set(others) == {field.name for field in fields(Request)} - {"request_id", "arrival_time"}
    assert differences([request], [replace(request, request_id="b", arrival_time=2.0)]) == []
    assert differences([request], []) != []
    for name, value in others.items():
        (found,) = differences([request], [replace(request, **{name: value})])
        assert name in found
