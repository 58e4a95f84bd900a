"""Gemma 3's and Gemma 4's formats, written out, and rendered by transformers from the same template."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from facet.chat import ChatTemplate
from facet.errors import RequestError
from tests.chat.conversations import (
    CALLS_PARIS,
    RICH_DECLARATION,
    RICH_TOOL,
    WEATHER_CONVERSATION,
    WEATHER_TOOL,
    assistant,
    tool_call,
    tool_result,
    user,
)
from tests.tokens.gemma_like import build_gemma_like

HERE = Path(__file__).parent
GEMMA3 = (HERE / "gemma3_like.jinja").read_text(encoding="utf-8")
GEMMA4 = (HERE / "gemma4_like.jinja").read_text(encoding="utf-8")
GEMMA4_LARGE = GEMMA4.replace("opens_with_empty_thought = false", "opens_with_empty_thought = true")
SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}

THINKING = {"enable_thinking": True}
SYSTEM = {"role": "system", "content": " Be brief. "}
WEATHER_DECLARATION = (
    '<|tool>declaration:get_weather{description:<|"|>Get weather<|"|>,parameters:{properties:{city:{'
    'description:<|"|>City<|"|>,type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],type:<|"|>OBJECT<|"|>}}<tool|>'
)
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
RESPONSE = '<|tool_response>response:get_weather{sky:<|"|>clear<|"|>,temp:20}<tool_response|>'
RESULT = tool_result({"temp": 20, "sky": "clear"}, "call_1")
THOUGHTFUL_CALL = {**CALLS_PARIS, "reasoning": "Look it up."}
PARTS = [{"type": "text", "text": " See "}, {"type": "image"}, {"type": "audio"}, {"type": "video"}]
AWKWARD_ARGUMENTS = {
    "b": True,
    "A": [1, -2.5, None, {"z": 'say "hi"', "Y": []}],
    "c": {},
    "text": "line\nbreak, {braces} and, commas",
}

# name: (messages, arguments of render, what it must read after <bos>)
GEMMA4_CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "one question": ([user(" hi ")], {}, "<|turn>user\nhi<turn|>\n<|turn>model\n"),
    "no reply opened": ([user("hi")], {"add_generation_prompt": False}, "<|turn>user\nhi<turn|>\n"),
    "several turns": (
        [user("a"), assistant(" b "), user("c")],
        {},
        "<|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nc<turn|>\n<|turn>model\n",
    ),
    "system text": (
        [SYSTEM, user("hi")],
        {},
        "<|turn>system\nBe brief.<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n",
    ),
    "developer is system, in parts": (
        [
            {
                "role": "developer",
                "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}],
            },
            user("hi"),
        ],
        {"add_generation_prompt": False},
        "<|turn>system\na b <turn|>\n<|turn>user\nhi<turn|>\n",
    ),
    "thinking": (
        [user("hi")],
        {"variables": THINKING},
        "<|turn>system\n<|think|>\n<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n",
    ),
    "thinking, system text and tools, in that order": (
        [SYSTEM, user("hi")],
        {"variables": THINKING, "tools": [WEATHER_TOOL, RICH_TOOL], "add_generation_prompt": False},
        f"<|turn>system\n<|think|>\nBe brief.{WEATHER_DECLARATION}{RICH_DECLARATION}<turn|>\n<|turn>user\nhi<turn|>\n",
    ),
    "tools alone, given without a wrapper": (
        [user("hi")],
        {"tools": [WEATHER_TOOL["function"], {"name": "now"}], "add_generation_prompt": False},
        f'<|turn>system\n{WEATHER_DECLARATION}<|tool>declaration:now{{description:<|"|><|"|>}}<tool|><turn|>\n'
        "<|turn>user\nhi<turn|>\n",
    ),
    "a whole tool conversation": (
        WEATHER_CONVERSATION,
        {"tools": [WEATHER_TOOL], "add_generation_prompt": False},
        f"<|turn>system\nBe brief.{WEATHER_DECLARATION}<turn|>\n<|turn>user\nWeather in Paris?<turn|>\n"
        f"<|turn>model\n{CALL}{RESPONSE}It is 20 degrees and clear.<turn|>\n",
    ),
    "after a tool result nothing is added": (
        [user("hi"), CALLS_PARIS, RESULT],
        {},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n{CALL}{RESPONSE}",
    ),
    "after a tool result with thinking a thought is opened": (
        [user("hi"), THOUGHTFUL_CALL, RESULT],
        {"variables": THINKING},
        "<|turn>system\n<|think|>\n<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n"
        f"<|channel>thought\nLook it up.\n<channel|>{CALL}{RESPONSE}<|channel>thought\n",
    ),
    "thoughts of earlier turns are dropped": (
        [
            user("hi"),
            THOUGHTFUL_CALL,
            RESULT,
            assistant("Clear.", reasoning_content="Say it."),
            user("thanks"),
        ],
        {},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n{CALL}{RESPONSE}Clear.<turn|>\n"
        "<|turn>user\nthanks<turn|>\n<|turn>model\n",
    ),
    "unless they are to be preserved, and led to a call": (
        [user("hi"), THOUGHTFUL_CALL, RESULT, assistant("Clear.", reasoning="Say it."), user("thanks")],
        {"variables": {"preserve_thinking": True}},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n<|channel>thought\nLook it up.\n<channel|>{CALL}{RESPONSE}"
        "Clear.<turn|>\n<|turn>user\nthanks<turn|>\n<|turn>model\n",
    ),
    "thoughts left in a stored reply are cut out": (
        [
            user("hi"),
            assistant("<|channel>thought\nhm\n<channel|>Yes. <|channel>thought\n<channel|>"),
            user("ok"),
        ],
        {"add_generation_prompt": False},
        "<|turn>user\nhi<turn|>\n<|turn>model\nYes.<turn|>\n<|turn>user\nok<turn|>\n",
    ),
    "two calls and their results, out of order": (
        [
            user("hi"),
            assistant("Both.", tool_calls=[tool_call("first", {}, "1"), tool_call("second", None, "2")]),
            tool_result("two", "2"),
            tool_result(1.5, "1"),
            tool_result(None, "3", name="third"),
        ],
        {},
        "<|turn>user\nhi<turn|>\n<|turn>model\nBoth.<|tool_call>call:first{}<tool_call|>"
        '<|tool_call>call:second{}<tool_call|><|tool_response>response:second{value:<|"|>two<|"|>}<tool_response|>'
        "<|tool_response>response:first{value:1.5}<tool_response|>"
        "<|tool_response>response:third{value:null}<tool_response|>",
    ),
    "calls in a row inside one turn": (
        [user("hi"), CALLS_PARIS, RESULT, CALLS_PARIS, RESULT, assistant("Done."), user("ok")],
        {"add_generation_prompt": False},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n{CALL}{RESPONSE}{CALL}{RESPONSE}Done.<turn|>\n<|turn>user\nok<turn|>\n",
    ),
    "a call that was never answered": (
        [user("hi"), CALLS_PARIS, user("never mind")],
        {"add_generation_prompt": False},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n{CALL}<turn|>\n<|turn>user\nnever mind<turn|>\n",
    ),
    "results inside the assistant's message": (
        [
            user("hi"),
            assistant(
                "Clear.",
                tool_calls=CALLS_PARIS["tool_calls"],
                tool_responses=[{"name": "get_weather", "response": {"temp": 20, "sky": "clear"}}],
            ),
        ],
        {"add_generation_prompt": False},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n{CALL}{RESPONSE}Clear.<turn|>\n",
    ),
    "arguments of every kind": (
        [user("hi"), assistant(tool_calls=[tool_call("f", AWKWARD_ARGUMENTS, "1")])],
        {"add_generation_prompt": False},
        "<|turn>user\nhi<turn|>\n<|turn>model\n<|tool_call>call:f{"
        'A:[1,-2.5,null,{Y:[],z:<|"|>say "hi"<|"|>}],b:true,c:{},'
        'text:<|"|>line\nbreak, {braces} and, commas<|"|>}<tool_call|>',
    ),
    "arguments already written in the model's syntax": (
        [user("hi"), assistant(tool_calls=[tool_call("f", "x:1", "1")])],
        {"add_generation_prompt": False},
        "<|turn>user\nhi<turn|>\n<|turn>model\n<|tool_call>call:f{x:1}<tool_call|>",
    ),
    "images, audio and video": (
        [user(PARTS)],
        {"add_generation_prompt": False},
        "<|turn>user\nSee<|image|><|audio|><|video|><turn|>\n",
    ),
    "an image in a tool result follows it": (
        [
            user("hi"),
            CALLS_PARIS,
            tool_result([{"type": "text", "text": "sky"}, {"type": "image"}], "call_1"),
        ],
        {},
        f"<|turn>user\nhi<turn|>\n<|turn>model\n{CALL}"
        '<|tool_response>response:get_weather{value:<|"|>sky<|"|>}<tool_response|><|image|>',
    ),
}

GEMMA3_CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "one question": ([user(" hi ")], {}, "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"),
    "system text opens the first user turn": (
        [{"role": "system", "content": "Be brief."}, user("hi"), assistant("yes"), user("ok")],
        {},
        "<start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\nyes<end_of_turn>\n"
        "<start_of_turn>user\nok<end_of_turn>\n<start_of_turn>model\n",
    ),
    "an image": (
        [user([{"type": "image"}, {"type": "text", "text": " what? "}])],
        {"add_generation_prompt": False},
        "<start_of_turn>user\n<start_of_image>what?<end_of_turn>\n",
    ),
}
ALL_CASES = [
    pytest.param(source, *case, id=f"{family}: {name}")
    for family, source, cases in (("gemma 3", GEMMA3, GEMMA3_CASES), ("gemma 4", GEMMA4, GEMMA4_CASES))
    for name, case in cases.items()
]


@pytest.fixture(scope="module")
def oracle() -> transformers.PreTrainedTokenizerFast:
    return transformers.PreTrainedTokenizerFast(tokenizer_object=build_gemma_like(), **SPECIAL_TOKENS)


@pytest.mark.parametrize(("source", "messages", "arguments", "expected"), ALL_CASES)
def test_reads_as_written_out_and_as_transformers_renders_it(
    oracle: transformers.PreTrainedTokenizerFast,
    source: str,
    messages: list[dict[str, Any]],
    arguments: dict[str, Any],
    expected: str,
) -> None:
    text = ChatTemplate(source, special_tokens=SPECIAL_TOKENS).render(messages, **arguments).text
    assert text == "<bos>" + expected
    assert text == oracle.apply_chat_template(
        messages,
        chat_template=source,
        tokenize=False,
        tools=arguments.get("tools"),
        add_generation_prompt=arguments.get("add_generation_prompt", True),
        **arguments.get("variables", {}),
    )


def test_large_models_open_a_reply_without_thinking_with_an_empty_thought() -> None:
    large = ChatTemplate(GEMMA4_LARGE, special_tokens=SPECIAL_TOKENS)
    assert large.render([user("hi")]).text.endswith("<|turn>model\n<|channel>thought\n<channel|>")
    assert large.render([user("hi")], variables=THINKING).text.endswith("<|turn>model\n")
    assert large.render([user("hi"), CALLS_PARIS, RESULT]).text.endswith(RESPONSE)


@pytest.mark.parametrize(
    ("source", "messages", "words"),
    [
        (GEMMA3, [user("a"), user("b")], "roles must alternate"),
        (GEMMA3, [user(None)], "Content must be text or a list of parts"),
        (GEMMA4, [user("hi"), RESULT], "a tool message must follow the assistant message"),
        (
            GEMMA4,
            [user([{"type": "hologram"}])],
            "has type 'hologram'; it can be text, image, audio or video",
        ),
    ],
)
def test_a_conversation_the_format_cannot_hold_is_refused_in_the_templates_words(
    source: str, messages: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        ChatTemplate(source, special_tokens=SPECIAL_TOKENS).render(messages)
