"""The dialogues are what Facet's own renderer and reader make of them, and they keep what evaluation holds back."""

import itertools
import json
import random
import re
from collections import Counter

import pytest
import tokenizers

from facet.chat.formats import find_thought
from facet.chat.messages import normalize_messages
from facet.chat.template import ChatTemplate
from facet.chat.tool_choice import normalize_tools, template_variables
from facet.tokens import Tokenizer
from facet.tokens.prompt_text import PromptText
from tests.chat.replies import make_parser, read_reply
from tools.bundled_model.dialogues import words
from tools.bundled_model.dialogues.calling import no_tool_fits, one_call, several_calls
from tools.bundled_model.dialogues.conversation import Dialogue, ReplyTurn, UserTurn
from tools.bundled_model.dialogues.mix import SHARES, dialogues
from tools.bundled_model.dialogues.numbers_in_words import in_words
from tools.bundled_model.dialogues.rendering import render
from tools.bundled_model.dialogues.results import make_result
from tools.bundled_model.dialogues.words import Lexicon, Source, is_held_out
from tools.bundled_model.generate import encode_dialogue, training_dialogues, training_examples

NUM_SAMPLES = 25


def source(seed: int, *, held_out: bool = False) -> Source:
    """As in training, or as in the evaluation."""
    return Source(random.Random(seed), Lexicon.of(held_out=held_out), is_inventive=not held_out)


def samples(kind: str) -> list[Dialogue]:
    """Some dialogues of one kind, thinking and not."""
    _, make = SHARES[kind]
    num = 3 if "long" in kind else NUM_SAMPLES
    drawn = source(len(kind))
    return [make(drawn) for _ in range(num)]


def server_prompt(template: ChatTemplate, dialogue: Dialogue, num_turns: int) -> PromptText:
    """The prompt Facet's server makes for the reply that is turn number `num_turns`."""
    return template.render(
        normalize_messages(dialogue.messages(num_turns)),
        tools=normalize_tools([tool.as_json() for tool in dialogue.tools]).for_template,
        variables=template_variables(chat_template_kwargs={"enable_thinking": dialogue.thinks}),
    )


def target_turns(dialogue: Dialogue) -> list[int]:
    """The replies that are examples: all of them, or with thoughts those whose thoughts are still shown."""
    first = dialogue.last_user_turn if dialogue.thinks else 0
    return [i for i, turn in enumerate(dialogue.turns) if isinstance(turn, ReplyTurn) and i >= first]


@pytest.mark.parametrize("kind", SHARES)
def test_examples_are_prompts_of_the_server_and_replies_of_the_model(
    kind: str, small_tokenizer: tokenizers.Tokenizer, facet_tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    for dialogue in samples(kind):
        example = encode_dialogue(small_tokenizer, dialogue)
        pieces = render(dialogue)
        turns = target_turns(dialogue)
        assert [piece.is_target for piece in pieces] == [False, True] * len(turns)
        position = 0
        for index, turn_index in enumerate(turns):
            prompt = server_prompt(template, dialogue, turn_index)
            assert "".join(piece.text for piece in pieces[: 2 * index + 1]) == prompt.text
            prompt_ids = facet_tokenizer.encode_prompt(prompt)
            reply_ids = facet_tokenizer.encode(pieces[2 * index + 1].text, add_special_tokens=False)
            position = len(prompt_ids) + len(reply_ids)
            assert list(example.token_ids[:position]) == prompt_ids + reply_ids
            assert all(example.is_target[len(prompt_ids) : position])
            check_reply(facet_tokenizer, dialogue, turn_index, prompt_ids, reply_ids)
        assert len(example.token_ids) == len(example.is_target) == position


def check_reply(
    tokenizer: Tokenizer, dialogue: Dialogue, turn_index: int, prompt_ids: list[int], reply_ids: list[int]
) -> None:
    """Facet's reader finds in the reply what the dialogue means."""
    turn = dialogue.turns[turn_index]
    assert isinstance(turn, ReplyTurn)
    thought = find_thought(tokenizer, prompt_ids)
    assert thought is not None
    parser = make_parser(tokenizer, tools_enabled=bool(dialogue.tools), starts_in_thought=thought.is_open)
    reply = read_reply(parser, reply_ids[:-1], is_complete=True)
    assert reply.content == turn.text
    assert reply.reasoning == (turn.thought if dialogue.thinks else "")
    assert [(name, json.loads(arguments)) for name, arguments in reply.calls] == [
        (call.tool_name, call.arguments_as_json()) for call in turn.calls
    ]
    assert tokenizer.id_to_token(reply_ids[-1]) == ("<|tool_response>" if turn.calls else "<turn|>")


def test_dialogues_that_think_always_think_and_others_never() -> None:
    seen: Counter[bool] = Counter()
    for dialogue in itertools.islice(dialogues(source(5)), 400):
        for piece in render(dialogue):
            if piece.is_target:
                seen[dialogue.thinks] += 1
                assert ("<channel|>" in piece.text) == dialogue.thinks, dialogue.kind
    assert min(seen.values()) > 50


@pytest.mark.parametrize("kind", ["call", "several calls", "answer", "long prompt"])
def test_every_value_passed_is_in_the_request(kind: str) -> None:
    for dialogue in samples(kind):
        request = ""
        for turn in dialogue.turns:
            if isinstance(turn, UserTurn):
                request = turn.text
                continue
            for call in turn.calls:
                for value in call.arguments.values():
                    for item in value if isinstance(value, tuple) else (value,):
                        # A truth is said in many ways, a small number also in words.
                        said = [str(item), in_words(item)] if type(item) is int and item < 20 else [str(item)]
                        assert isinstance(item, bool) or any(form in request for form in said), (item, request)


def test_calls_fit_their_declarations() -> None:
    """Only declared parameters, all that are required, of the declared type."""
    types: dict[str, set[type]] = {
        "string": {str},
        "integer": {int},
        "number": {int, float},
        "boolean": {bool},
        "array": {tuple},
    }
    num_calls = 0
    for dialogue in itertools.islice(dialogues(source(6)), 400):
        tools = {tool.name: tool for tool in dialogue.tools}
        assert len(tools) == len(dialogue.tools), "two tools have one name"
        for turn in dialogue.turns:
            for call in turn.calls if isinstance(turn, ReplyTurn) else ():
                num_calls += 1
                parameters = {parameter.name: parameter for parameter in tools[call.tool_name].parameters}
                required = {name for name, parameter in parameters.items() if parameter.is_required}
                assert required <= set(call.arguments) <= set(parameters)
                for name, value in call.arguments.items():
                    assert type(value) in types[parameters[name].type]
                    assert not parameters[name].choices or value in parameters[name].choices
    assert num_calls > 200


def test_where_no_tool_fits_nothing_is_called_and_nothing_could_be() -> None:
    drawn = source(7)
    for _ in range(100):
        dialogue = no_tool_fits(drawn)
        reply = dialogue.turns[-1]
        assert isinstance(reply, ReplyTurn)
        assert not reply.calls
        assert all(tool.name in reply.text for tool in dialogue.tools)


def test_several_calls_are_several() -> None:
    drawn = source(8)
    for _ in range(50):
        assert max(len(turn.calls) for turn in several_calls(drawn).turns if isinstance(turn, ReplyTurn)) >= 2


def test_answers_tell_what_was_returned() -> None:
    drawn = source(9)
    for _ in range(200):
        result = make_result(drawn)
        assert result.told
        assert all(part in result.answer and part in result.text for part in result.told)


def test_held_out_words_are_never_seen_in_training() -> None:
    lists = (words.NOUNS, words.VERBS, words.ADJECTIVES)
    kept = {word for group in lists for word in group if is_held_out(word)}
    assert len(kept) > 30
    # Made-up tools, requests and values only: plain talk about animals and colours may use any word.
    for make in (one_call, several_calls, no_tool_fits):
        drawn = source(10)
        for _ in range(100):
            dialogue = make(drawn)
            for tool in dialogue.tools:
                assert not kept & set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", tool.name).lower()))


def test_an_inventive_source_is_not_confined_to_its_lists() -> None:
    drawn = source(12)
    for draw, known in ((drawn.verb, words.VERBS), (drawn.adjective, words.ADJECTIVES)):
        drawn_words = [draw() for _ in range(400)]
        num_known = sum(word in known for word in drawn_words)
        assert 100 < num_known < 300
        assert len({word for word in drawn_words if word not in known}) > 0.9 * (400 - num_known), "they seldom repeat"
    plain = Source(random.Random(12), Lexicon.of(held_out=False))
    assert all(plain.verb() in words.VERBS for _ in range(100))


def test_held_out_tools_are_made_of_held_out_words() -> None:
    drawn = source(11, held_out=True)
    for _ in range(60):
        for tool in one_call(drawn).tools:
            parts = [part for part in re.split(r"_|(?=[A-Z])", tool.name) if part]
            assert all(is_held_out(part) for part in parts), tool.name
            for parameter in tool.parameters:
                assert all(is_held_out(part) for part in parameter.words.split()), parameter.name


def test_the_same_seed_gives_the_same_examples(small_tokenizer: tokenizers.Tokenizer) -> None:
    first, again, other = (list(itertools.islice(training_examples(small_tokenizer, seed), 100)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_kind_comes_in_its_share() -> None:
    num = 4000
    counts = Counter(dialogue.kind for dialogue in itertools.islice(training_dialogues(1), num))
    assert sum(share for share, _ in SHARES.values()) == 100
    for kind, (share, _) in SHARES.items():
        expected = num * share / 100
        assert abs(counts[kind] - expected) < 5 * expected**0.5, kind


def test_no_example_is_longer_than_the_context(small_tokenizer: tokenizers.Tokenizer) -> None:
    _, make = SHARES["very long prompt"]
    drawn = source(12)
    lengths = [len(encode_dialogue(small_tokenizer, make(drawn)).token_ids) for _ in range(40)]
    assert 2000 < max(lengths) < 8192


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "zero"),
        (12, "twelve"),
        (40, "forty"),
        (57, "fifty-seven"),
        (-3, "minus three"),
        (305, "three hundred five"),
    ],
)
def test_numbers_in_words(number: int, expected: str) -> None:
    assert in_words(number) == expected
