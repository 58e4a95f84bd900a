"""What may be given to `generate` and `chat`; what may not is refused by name before an engine hears of it."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from facet import LLM, ConfigError, LoRARequest, RequestError, SamplingParams, TextPrompt, TokensPrompt
from tests.offline.conftest import GREEDY

IDS = [5, 6, 7]
ASK = {"role": "user", "content": "one two"}
HUGE = 10**5000  # of more digits than Python writes


@pytest.fixture
def silent(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """Its engine hears of nothing."""
    monkeypatch.setattr(llm._engine, "answer", lambda *_: pytest.fail("the engine was asked"))
    return llm


@pytest.mark.parametrize(
    ("prompts", "token_ids"),
    [
        (iter(["one", "two"]), None),
        (map(str, ("one", "two")), None),
        (("one", "two"), None),
        (np.array(["one", "two"]), None),
        (IDS, [IDS]),
        (iter(IDS), [IDS]),
        (array("i", IDS), [IDS]),
        (np.array(IDS), [IDS]),
        (list(np.array(IDS, np.int32)), [IDS]),
        (torch.tensor(IDS), [IDS]),
        (np.array([IDS, IDS[::-1]]), [IDS, IDS[::-1]]),
        ([np.array(IDS), IDS], [IDS, IDS]),
        ((iter(IDS) for _ in range(2)), [IDS, IDS]),
        ({"prompt_token_ids": np.array(IDS)}, [IDS]),
        ([], []),
    ],
)
def test_every_prompt_is_answered(llm: LLM, prompts: Any, token_ids: list[list[int]] | None) -> None:
    results = llm.generate(prompts, GREEDY)
    if token_ids is None:
        assert [result.prompt for result in results] == ["one", "two"]
    else:
        assert [result.prompt_token_ids for result in results] == token_ids
        assert all(type(token_id) is int for result in results for token_id in result.prompt_token_ids)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        (None, "prompts is None, but a prompt is a text, a list of token ids"),
        (5, "prompts is 5, but a prompt is"),
        (b"abc", "prompts is b'abc', but a prompt is"),
        (np.array(5), r"prompts is array\(5\), but a prompt is"),
        ([None], r"prompts\[0\] is None, but a prompt is"),
        ([b"abc"], r"prompts\[0\] is b'abc', but"),
        (["a", 5], r"prompts\[1\] is 5, but a prompt is"),
        ([["a"]], r"prompts\[0\] holds 'a', but a token id is an integer"),
        ([[2], [1.5, 2]], r"prompts\[1\] holds 1\.5, but a token id is an integer"),
        ([2, "a"], "prompts holds 'a', but a token id is"),
        ([1.5], r"prompts holds 1\.5, but a token id is"),
        (np.array([1.5, 2]), r"prompts holds 1\.5, but"),
        (torch.tensor([[0.5]]), r"prompts\[0\] holds 0\.5, but"),
        ([2, True], "prompts holds True, but"),
        ([[2, None]], r"prompts\[0\] holds None, but"),
        ([10**40], "prompts holds 1000000000.*0000, but a token id is"),
        ([HUGE], "prompts holds a number too long to show, but"),
        ({"prompt_token_ids": None}, "needs 'prompt' or 'prompt_token_ids'"),
        ({"prompt_token_ids": "abc"}, r"prompts\.prompt_token_ids is 'abc', but must be a list of token ids"),
        ([{"prompt_token_ids": 5}], r"prompts\[0\]\.prompt_token_ids is 5, but must be"),
        ({"prompt_token_ids": ["5"]}, r"prompts\.prompt_token_ids holds '5', but"),
        ({"prompt": 5}, r"prompts\.prompt is 5, but must be a text"),
        ({5: "one", "b": "two"}, r"may hold 'prompt' or 'prompt_token_ids', not \['5', 'b'\]"),
        ({"prompt": "one", "multi_modal_data": 5}, "multi_modal_data is 5, but must be a mapping"),
        ({"prompt": "one", "cache_salt": 5}, "cache_salt is 5, but must be a text"),
        ({"prompt": "one", "multi_modal_uuids": 5}, "multi_modal_uuids is 5, but must be a mapping"),
        ({"prompt_embeds": [[0.5]]}, r"may hold 'prompt' or 'prompt_token_ids', not \['prompt_embeds'\]"),
        ({"prompt": "one", "mm_processor_kwargs": {5: 5}}, "mm_processor_kwargs is {5: 5}, but must be a mapping"),
    ],
)
def test_what_is_no_prompt(silent: LLM, prompts: Any, words: str) -> None:
    check_refusal(lambda: silent.generate(prompts, GREEDY), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"priority": 5}, "priority is 5, but must be a list with an integer for each prompt"),
        ({"priority": ["x", 0]}, "priority holds 'x', but a priority is an integer"),
        ({"priority": [10**40, 0]}, "priority holds 10000.*, but a priority is an integer of at most 64 bits"),
        ({"priority": [0, True]}, "priority holds True, but"),
        ({"priority": [0.0, 1]}, r"priority holds 0\.0, but"),
        ({"priority": [0]}, "1 priorities for 2 prompts"),
        ({"sampling_params": {"temperature": 0}}, "sampling_params is {'temperature': 0}, but must be a SamplingP"),
        ({"sampling_params": 5}, "sampling_params is 5, but must be"),
        ({"sampling_params": [GREEDY, None]}, "sampling_params holds None, but must be"),
        ({"sampling_params": "xy"}, "sampling_params is 'xy', but must be"),
        ({"split_special_tokens": "no"}, "split_special_tokens is 'no', but must be True or False"),
        ({"lora_request": 5}, "lora_request is 5, but must be a LoRARequest, or a list with one or None for each"),
        ({"lora_request": [None, 5]}, "lora_request is 5, but must be"),
        ({"lora_request": "a=/x"}, "lora_request is 'a=/x', but must be"),
        ({"lora_request": [None]}, "1 adapters for 2 prompts"),
        ({"lora_request": LoRARequest("a b", 1, "/x")}, "An adapter cannot be called 'a b'"),
        ({"lora_request": LoRARequest("a", 1, 5)}, r"lora_request is LoRARequest\(.*\), but must be"),  # type: ignore[arg-type]
        ({"tokenization_kwargs": {"truncation": True}}, "tokenization_kwargs holds 'truncation', but may hold add_spe"),
        ({"tokenization_kwargs": 5}, "tokenization_kwargs is 5, but must be a mapping"),
        ({"mm_processor_kwargs": 5}, "mm_processor_kwargs is 5, but must be a mapping"),
    ],
)
def test_what_generate_refuses(silent: LLM, arguments: dict[str, Any], words: str) -> None:
    error = check_refusal(lambda: silent.generate(["one", "two"], **arguments), words)
    assert [error.field] == list(arguments)


def test_arguments_may_be_arrays_and_iterators(llm: LLM) -> None:
    lengths = [3, 4]
    settings = (SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths)
    results = llm.generate(["one", "two"], settings, priority=np.array([1, 0]))  # type: ignore[arg-type]
    assert [len(result.outputs[0].token_ids) for result in results] == lengths


@pytest.mark.parametrize(
    "messages", [[ASK], (ASK,), iter([ASK]), [[ASK]], iter([iter([ASK])]), np.array([ASK], dtype=object)]
)
def test_a_conversation_may_come_in_any_shape(llm: LLM, messages: Any) -> None:
    (result,) = llm.chat(messages, GREEDY)
    assert result.prompt == "<|turn>user\none two<turn|>\n<|turn>model"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (ASK, r"messages is {'content': .*}, but must be a list of messages.*\. Put the message into a list\."),
        ("one", "messages is 'one', but must be a list of messages, or a list of such lists"),
        (None, "messages is None, but must be"),
        (5, "messages is 5, but must be"),
        (["one"], r"messages\[0\] is 'one', but must be a message or a list of messages"),
        ([[ASK], ASK], r"messages\[1\] is {.*}, but must be a message or a list"),
        ([[ASK], 5], r"messages\[1\] is 5, but must be"),
        ([], "messages is empty"),
        ([[]], "messages is empty"),
    ],
)
def test_what_is_no_conversation(silent: LLM, messages: Any, words: str) -> None:
    assert check_refusal(lambda: silent.chat(messages, GREEDY), words).field == "messages"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mm_processor_kwargs": 5}, "mm_processor_kwargs is 5, but must be a mapping"),
        ({"mm_processor_kwargs": {5: 1, "a": 2}}, "mm_processor_kwargs is {.*}, but must be a mapping"),
        ({"documents": 5}, "documents is 5, but must be a list of mappings"),
        ({"documents": ["a"]}, r"documents is \['a'\], but must be a list of mappings"),
        ({"documents": {"text": "a"}}, "documents is {'text': 'a'}, but"),
        ({"parallel_tool_calls": "x"}, "parallel_tool_calls is 'x', but must be True or False"),
        ({"add_generation_prompt": "no"}, "add_generation_prompt is 'no', but must be"),
        ({"continue_final_message": 1}, "continue_final_message is 1, but must be"),
        ({"sampling_params": {"temperature": 0}}, "sampling_params is {'temperature': 0}, but must be"),
        ({"tools": 5}, "tools must be"),
        ({"response_format": 5}, "response_format"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"lora_request": 5}, "lora_request is 5, but must be a LoRARequest"),
        ({"chat_template": "a.jinja"}, "chat_template is 'a.jinja', but must be the text of a template"),
        ({"chat_template_content_format": "x"}, "chat_template_content_format is 'x', but must be one of auto, string"),
        ({"tokenization_kwargs": {"max_length": 5}}, "tokenization_kwargs holds 'max_length'"),
    ],
)
def test_what_chat_refuses(silent: LLM, arguments: dict[str, Any], words: str) -> None:
    check_refusal(lambda: silent.chat([ASK], **arguments), words)


def test_arguments_in_the_order_and_with_the_defaults_of_vllm(llm: LLM) -> None:
    (expected,) = llm.chat([ASK], GREEDY)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    for given in (None, [None]):
        (same,) = llm.chat([ASK], GREEDY, False, given, None, "openai", True, False, None, None, None, None)  # type: ignore[arg-type]
        assert (same.prompt, same.outputs) == (expected.prompt, expected.outputs)
    assert llm.chat([ASK], GREEDY, chat_template=template)[0].prompt == "user: one two"
    (result,) = llm.generate("one", GREEDY, use_tqdm=print, lora_request=None)
    assert (result.metrics, result.lora_request, result.outputs[0].lora_request) == (None, None, None)


def test_prompts_as_vllms_programs_write_them(llm: LLM) -> None:
    token_ids = [*range(40, 90)]
    salted: Any = {"prompt_token_ids": token_ids, "prompt": "a", "cache_salt": "b"}
    plain = TokensPrompt(prompt_token_ids=token_ids)
    assert llm.reset_prefix_cache()
    cached = [llm.generate(prompt, GREEDY)[0].num_cached_tokens for prompt in (plain, salted, plain, salted)]
    assert cached == [0, 0, 49, 49]  # salts are kept apart
    assert llm.reset_prefix_cache()
    assert llm.generate(plain, GREEDY)[0].num_cached_tokens == 0
    beside: Any = {"multi_modal_data": None, "multi_modal_uuids": None, "mm_processor_kwargs": None}
    assert llm.generate(TextPrompt(prompt="one") | beside, GREEDY)[0].prompt == "one"


@pytest.mark.parametrize("level", [0, 3, 1.0, True, "1", None, 10**40])
def test_there_are_two_levels_of_sleep(llm: LLM, level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm._engine, "sleep", lambda level: pytest.fail("the engine was asked"))
    with pytest.raises(ConfigError, match=r"There is no level .* of sleep"):
        llm.sleep(level)


@pytest.mark.parametrize(
    "settings",
    [{"max_tokens": 10**40}, {"stop_token_ids": [10**40]}, {"logit_bias": {10**40: 1}}, {"stop": ["\ud800"]}],
)
def test_what_cannot_be_sent_is_refused(remote: LLM, settings: dict[str, Any]) -> None:
    check_refusal(
        lambda: remote.generate(["one", "two"], [GREEDY, SamplingParams(**settings)]), "cannot be sent to the engine"
    )
    assert len(remote.generate("one", GREEDY)[0].outputs[0].token_ids) == 8


@pytest.mark.parametrize(
    ("settings", "words", "field"),
    [
        ({"bad_words_token_ids": [5]}, "bad_words_token_ids must hold a list of token ids for each word, not 5.", None),
        ({"bad_words_token_ids": ["ab"]}, "bad_words_token_ids must hold a list of token ids for each word, n", None),
        ({"bad_words_token_ids": 5}, "bad_words_token_ids must be a list, not 5.", None),
        ({"bad_words_token_ids": [[5], []]}, "bad_words_token_ids holds a word of no tokens. Remove it.", None),
        ({"bad_words_token_ids": [["a"]]}, "bad_words_token_ids must be an integer, not 'a'.", None),
        ({"bad_words": ["a"], "bad_words_token_ids": [[]]}, "bad_words holds a word of no tokens.", "bad_words"),
        ({"logit_bias": {"5": 1}}, "logit_bias must map token ids to numbers, and a token id is an integer, n", None),
        ({"logit_bias": {1.5: 1}}, "logit_bias must map token ids to numbers, and a token id is an integer, n", None),
        ({"logit_bias": {5: "1"}}, "logit_bias must be a number, not '1'.", None),
    ],
)
def test_token_ids_in_sampling_settings(settings: dict[str, Any], words: str, field: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**settings)
    assert str(caught.value).startswith(words)
    assert caught.value.field == (field or next(iter(settings)))


def check_refusal(ask: Callable[[], object], words: str) -> RequestError:
    with pytest.raises(RequestError, match=words) as caught:
        ask()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    return caught.value
