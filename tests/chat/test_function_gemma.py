"""FunctionGemma: what Gemma 4's reader and grammar are tested with, in FunctionGemma's markers."""

import json
from pathlib import Path
from typing import Any

import pytest

from facet.chat import ChatTemplate
from facet.chat.formats import FUNCTION_GEMMA, GEMMA4, ReplyMarkers, answer_ends, find_thought
from facet.chat.messages import normalize_messages
from facet.chat.tool_choice import normalize_tools
from facet.chat.tool_grammar import thought_tokens, tool_call_grammar
from facet.config import PromptConfig
from facet.prompts.asked_model import make_asked_model
from facet.prompts.generation_defaults import GenerationDefaults
from facet.prompts.prompt_files import PromptFiles
from facet.sampling import GrammarCompiler
from facet.sampling.grammar_walker import GrammarWalker
from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL, tool_call, user
from tests.chat.replies import encode_reply, make_parser, read_reply
from tests.chat.test_replies import CASES, parser_options
from tests.tokens.gemma_like import FUNCTION_TOKENS, GEMMA3_TOKENS, build_gemma_like, write_tokenizer_folder

EOS = 1
VOCAB_SIZE = 512
HERE = Path(__file__).parent
CALL = "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"


def in_its_markers(case: Any) -> Any:
    if isinstance(case, dict):
        return {field: in_its_markers(value) for field, value in case.items()}
    if isinstance(case, list):
        return [in_its_markers(value) for value in case]
    if not isinstance(case, str):
        return case
    for theirs, its in (
        *zip(GEMMA4.call, FUNCTION_GEMMA.call, strict=True),
        *zip(GEMMA4.response, FUNCTION_GEMMA.response, strict=True),
        *zip(GEMMA4.turn, FUNCTION_GEMMA.turn, strict=True),
        (GEMMA4.string_delimiter, FUNCTION_GEMMA.string_delimiter),
        (json.dumps(GEMMA4.string_delimiter)[1:-1], FUNCTION_GEMMA.string_delimiter),  # in the arguments expected
    ):
        case = case.replace(theirs, its)
    return case


# Those without thoughts, which it does not mark.
ITS_CASES = [in_its_markers(case) for case in CASES if "channel" not in json.dumps(case["reply"])]
ITS_CASES = [case for case in ITS_CASES if not case.get("starts_in_thought")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_gemma_like(control_tokens=(*GEMMA3_TOKENS, *FUNCTION_TOKENS)))


@pytest.mark.parametrize("case", ITS_CASES, ids=lambda case: case["name"])
def test_replies(tokenizer: Tokenizer, case: dict[str, Any]) -> None:
    for by_character in (False, True):
        parser = make_parser(tokenizer, **parser_options(case))
        token_ids = encode_reply(tokenizer, case["reply"], by_character=by_character)
        reply = read_reply(parser, token_ids, is_complete=not case.get("cut", False))
        assert reply.content == case.get("content", "")
        assert reply.calls == case.get("calls", [])
        assert not reply.reasoning
        assert parser.stop_string == case.get("stop_string")


def test_most_cases_are_among_them() -> None:
    assert len(ITS_CASES) > 150


def test_it_marks_no_thoughts(tokenizer: Tokenizer) -> None:
    markers = ReplyMarkers.find(tokenizer)
    assert markers is not None
    assert find_thought(tokenizer, [5, 6]) is None
    assert thought_tokens(markers, thinking=True) is None
    parser = make_parser(tokenizer)
    (first, *_) = encode_reply(tokenizer, "thought")
    assert parser.push(first), "nothing is held back: no thought can have begun"


def test_a_response_ends_an_answer(tokenizer: Tokenizer) -> None:
    """Its makers call this an additional stop sequence."""
    opens_response = tokenizer.token_to_id("<start_function_response>")
    assert answer_ends(tokenizer, (1, 106)) == (1, 106, opens_response)
    assert answer_ends(tokenizer, (1, 106, opens_response or 0)) == (1, 106, opens_response)
    assert answer_ends(Tokenizer(build_gemma_like(control_tokens=GEMMA3_TOKENS)), (1, 106)) == (1, 106)
    files = PromptFiles(
        folder=HERE,
        tokenizer=tokenizer,
        template=None,
        defaults=GenerationDefaults(eos_token_ids=(1,), sampling={}, max_tokens=None, max_tokens_limit=None),
        any_whitespace=False,
        max_media={},
    )
    model = make_asked_model(PromptConfig(), files, max_model_len=64, eos_token_ids=())
    assert model.eos_token_ids == (1, opens_response)


def test_calls_are_constrained(tmp_path: Path) -> None:
    """Its tokens are control tokens for a grammar, too, whatever tokenizer.json calls them."""
    folder = write_tokenizer_folder(tmp_path, control_tokens=GEMMA3_TOKENS, text_tokens=FUNCTION_TOKENS)
    tokenizer = Tokenizer.from_folder(folder)
    markers = ReplyMarkers.find(tokenizer)
    assert markers is not None
    spec = tool_call_grammar(normalize_tools([WEATHER_TOOL], "required"), markers)
    assert spec is not None
    compiled = GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=[EOS]).start(spec).result()
    walker = GrammarWalker(spec, compiled, vocab_size=VOCAB_SIZE, stop_token_ids=[EOS])

    def may_follow(token: str) -> bool:
        token_id, mask = tokenizer.token_to_id(token), walker.mask()
        assert token_id is not None
        assert mask is not None
        return bool(mask[token_id // 32] >> token_id % 32 & 1)

    assert may_follow("<start_function_call>")
    token_ids = tokenizer.encode(CALL, add_special_tokens=False)
    for token_id in token_ids:
        if token_id == markers.string_delimiter:
            assert not may_follow("<end_function_call>")
        walker.accept(token_id)
    assert may_follow("<eos>")
    assert may_follow("<start_function_call>")
    walker = GrammarWalker(spec, compiled, vocab_size=VOCAB_SIZE, stop_token_ids=[EOS])
    for token_id in token_ids[: token_ids.index(markers.string_delimiter) + 1]:
        walker.accept(token_id)
    in_a_string = {token for token in FUNCTION_TOKENS if may_follow(token)}
    assert in_a_string == {"<escape>"}, "which closes it"


def test_a_result_has_the_name_of_its_call() -> None:
    """Clients send ids. The model's own template refuses results that have no name."""
    template = ChatTemplate((HERE / "functiongemma_like.jinja").read_text(encoding="utf-8"))
    calls = [tool_call("get_weather", {"city": city}, call_id) for city, call_id in (("Paris", "a"), ("Rome", "b"))]
    prompt = template.render(
        normalize_messages(
            [
                user("Weather?"),
                {"role": "assistant", "content": None, "tool_calls": [*calls, tool_call("now", {}, "c")]},
                {"role": "tool", "tool_call_id": "c", "content": "noon"},
                {"role": "tool", "tool_call_id": "a", "content": "clear<end_function_response>"},
            ]
        ),
        tools=[WEATHER_TOOL],
    )
    assert prompt.text.endswith(
        "<start_function_call>call:now{}<end_function_call>"
        "<start_function_response>response:get_weather{value:<escape>clear<end_function_response><escape>}"
        "<end_function_response><start_function_response>response:now{value:<escape>noon<escape>}"
        "<end_function_response>"
    )
    assert prompt.own_text is not None
    assert prompt.own_text.count("<end_function_response>") == 2
