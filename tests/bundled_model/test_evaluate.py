"""The examination: what counts as right, on replies whose merit is known, and a whole run on a random model."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from facet.tokens import Tokenizer
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint
from tools.bundled_model import evaluate, scoring
from tools.bundled_model.dialogues.conversation import Call, Dialogue, UserTurn
from tools.bundled_model.dialogues.words import is_held_out
from tools.bundled_model.evaluate import Answered, Examiner
from tools.bundled_model.evaluation_cases import LONG_PROMPT_CHARS, Case, long_prompts, make_cases
from tools.bundled_model.scoring import Reply

CITY = Call("get_weather", {"city": "Paris"})
THOUGHT = "<|channel>thought\nThis needs get_weather.\n<channel|>"
PARIS = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
MIXED = '<|tool_call>call:f{a:1,b:2.50,c:true,d:[<|"|>x<|"|>,<|"|>y<|"|>]}<tool_call|>'
RESPONSE = "<|tool_response>"


def read(tokenizer: Tokenizer, text: str, *, is_complete: bool = True, starts_in_thought: bool = False) -> Reply:
    return scoring.read_reply(
        tokenizer,
        tokenizer.encode(text, add_special_tokens=False),
        is_complete=is_complete,
        has_tools=True,
        starts_in_thought=starts_in_thought,
    )


@pytest.mark.parametrize(
    ("text", "expected", "is_right"),
    [
        (PARIS + RESPONSE, [CITY], True),
        (THOUGHT + PARIS + RESPONSE, [CITY], True),
        (PARIS.replace("Paris", "Rome") + RESPONSE, [CITY], False),
        (PARIS.replace("city", "place") + RESPONSE, [CITY], False),
        (PARIS.replace("get_weather", "get_news") + RESPONSE, [CITY], False),
        (PARIS + PARIS + RESPONSE, [CITY], False),
        (PARIS + PARIS + RESPONSE, [CITY, CITY], True),
        ("Paris is lovely.<turn|>", [CITY], False),
        (MIXED + RESPONSE, [Call("f", {"a": 1, "b": 2.5, "c": True, "d": ("x", "y")})], True),
        (MIXED + RESPONSE, [Call("f", {"a": 1, "b": 2.5, "c": 1, "d": ("x", "y")})], False),
        (MIXED + RESPONSE, [Call("f", {"a": True, "b": 2.5, "c": True, "d": ("x", "y")})], False),
        (MIXED + RESPONSE, [Call("f", {"a": 1, "b": 2.5, "c": True, "d": ("y", "x")})], False),
    ],
)
def test_right_calls(facet_tokenizer: Tokenizer, text: str, expected: list[Call], is_right: bool) -> None:
    assert scoring.calls_are_right(read(facet_tokenizer, text), expected) == is_right


def test_a_call_cut_off_is_not_right(facet_tokenizer: Tokenizer) -> None:
    cut = read(facet_tokenizer, PARIS.partition('<|"|>}')[0], is_complete=False)
    assert scoring.attempts_call(cut)
    assert not scoring.calls_are_right(cut, [CITY])
    assert not scoring.syntax_is_valid(cut)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (PARIS + RESPONSE, True),
        (MIXED + RESPONSE, True),
        (THOUGHT + PARIS + MIXED + RESPONSE, True),
        ("<|tool_call>call:now{}<tool_call|>" + RESPONSE, True),
        (PARIS + "<turn|>", False),  # nothing would wait for the result
        ("Well: " + PARIS + RESPONSE, False),
        (PARIS.replace("<tool_call|>", "") + RESPONSE, False),
        ('<|tool_call>call:get_weather{city:"Paris"}<tool_call|>' + RESPONSE, False),
        ('<|tool_call>call:get_weather{city: <|"|>Paris<|"|>}<tool_call|>' + RESPONSE, False),
        ('<|tool_call>call:get_weather{city:<|"|>Paris<|"|><tool_call|>' + RESPONSE, False),
        ('<|tool_call>get_weather{city:<|"|>Paris<|"|>}<tool_call|>' + RESPONSE, False),
        ("<|tool_call>call:f{a:True}<tool_call|>" + RESPONSE, False),
        ("<|tool_call>call:f{a:1,}<tool_call|>" + RESPONSE, False),
    ],
)
def test_valid_syntax(facet_tokenizer: Tokenizer, text: str, is_valid: bool) -> None:
    reply = read(facet_tokenizer, text)
    assert scoring.attempts_call(reply)
    assert scoring.syntax_is_valid(reply) == is_valid


@pytest.mark.parametrize(
    ("text", "is_well_formed"),
    [
        (THOUGHT + PARIS + RESPONSE, True),
        (THOUGHT + "It is sunny.<turn|>", True),
        (THOUGHT + "<turn|>", False),
        ("It is sunny.<turn|>", False),
        ("<|channel>thought\n\n<channel|>It is sunny.<turn|>", False),
        ("<|channel>thought\nHm.<channel|>It is sunny.<turn|>", False),
        ("<|channel>thought\nHm. It is sunny.<turn|>", False),
        (THOUGHT + THOUGHT + "It is sunny.<turn|>", False),
        (THOUGHT + "It is <channel|>sunny.<turn|>", False),
    ],
)
def test_thoughts(facet_tokenizer: Tokenizer, text: str, is_well_formed: bool) -> None:
    assert scoring.thought_is_well_formed(read(facet_tokenizer, text)) == is_well_formed


def test_a_thought_that_the_prompt_opened(facet_tokenizer: Tokenizer) -> None:
    reply = read(facet_tokenizer, "It answered.\n<channel|>It is 20.<turn|>", starts_in_thought=True)
    assert (reply.thought, reply.content) == ("It answered.", "It is 20.")
    assert scoring.thought_is_well_formed(reply)


@pytest.mark.parametrize(
    ("text", "facts", "is_right"),
    [
        ("It is 20 and clear.<turn|>", ("20", "clear"), True),
        ("It is 20.<turn|>", ("20", "clear"), False),
        ("No tool fits.<turn|>", (), True),
        ("<turn|>", (), False),
        (PARIS + RESPONSE, (), False),
        (THOUGHT + "None of my tools can do that.<turn|>", (), True),
    ],
)
def test_answers_in_words(facet_tokenizer: Tokenizer, text: str, facts: tuple[str, ...], is_right: bool) -> None:
    assert scoring.tells(read(facet_tokenizer, text), facts) == is_right


def test_measures_count_what_they_name(facet_tokenizer: Tokenizer) -> None:
    def answered(group: Any, text: str, *, thinks: bool = False, calls: tuple[Call, ...] = ()) -> Answered:
        dialogue = Dialogue("", (UserTurn("?"),), thinks=thinks)
        return Answered(Case(group=group, dialogue=dialogue, calls=calls), read(facet_tokenizer, text))

    results = evaluate.measures(
        [
            answered("one call", PARIS + RESPONSE, calls=(CITY,)),
            answered("one call", THOUGHT + PARIS.replace("Paris", "Rome") + RESPONSE, thinks=True, calls=(CITY,)),
            answered("no tool fits", "No tool fits.<turn|>"),
            answered("no tool fits", PARIS, thinks=True),
        ]
    )
    counts = {measure.name.strip(): (measure.num_right, measure.num) for measure in results if measure.num}
    assert counts == {
        "right call, unseen tools": (1, 2),
        "thinking off": (1, 1),
        "thinking on": (0, 1),
        "right tool, whatever the arguments": (2, 2),
        "valid call syntax": (2, 3),
        "thinking format": (1, 2),
        "no tool fits": (1, 2),
    }
    assert [measure.line.split()[-1] for measure in results if measure.wanted] == [
        "MISSED",
        "MISSED",
        "MISSED",
        "MISSED",
    ]


def test_cases_ask_for_a_reply_and_half_of_them_think() -> None:
    cases = make_cases(8, seed=1)
    for case in cases:
        assert case.messages[-1]["role"] in ("user", "tool")
    assert sum(case.dialogue.thinks for case in cases) * 2 == len(cases)
    assert cases == make_cases(8, seed=1)
    assert cases != make_cases(8, seed=2)
    unseen = [tool.name for case in cases if case.group == "one call" for tool in case.dialogue.tools]
    assert all(is_held_out(part) for name in unseen if name.islower() for part in name.split("_"))


def test_long_prompts_are_as_long_as_they_say() -> None:
    for case in long_prompts(3, seed=1):
        text = case.messages[0]["content"]
        assert LONG_PROMPT_CHARS - 5 <= len(text) <= LONG_PROMPT_CHARS
        assert case.calls[0].arguments["pattern"] in text.splitlines()[0]


@pytest.fixture(scope="module")
def random_model(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The right tokenizer and template, and weights that mean nothing."""
    config = SHRUNK["Gemma 4 E2B"] | {
        "vocab_size": 4096,
        "vocab_size_per_layer_input": 4096,
        "max_position_embeddings": 8192,
    }
    folder = tmp_path_factory.mktemp("random_model")
    write_checkpoint(folder, config, random_tensors(config))
    for file in tokenizer_folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_whole_run(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "_MAX_REPLY_TOKENS", 6)
    figures = tmp_path / "figures.json"
    command = [str(random_model), "--num", "2", "--long-prompts", "0", "--device", "cpu", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", ["evaluate", *command, "--show", "1"])
    evaluate.main()
    printed = capsys.readouterr().out
    by_name = {entry["name"]: entry for entry in json.loads(figures.read_text())}
    assert by_name["right call, unseen tools"] == {
        "name": "right call, unseen tools",
        "right": 0,
        "num": 2,
        "wanted": 0.9,
    }
    assert by_name["thinking format"]["num"] == 6
    assert "MISSED" in printed
    assert "expected" in printed


def test_company_changes_no_answer(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than in earnest; a random model's calls are wrong, but its words must be the same every time."""
    monkeypatch.setattr(evaluate, "_MAX_REPLY_TOKENS", 4)
    monkeypatch.setattr(evaluate, "_AT_ONCE", (1, 3))
    monkeypatch.setattr(evaluate, "is_right", lambda answered: True)
    monkeypatch.setattr("tools.bundled_model.evaluation_cases.LONG_PROMPT_CHARS", 600)
    examiner = Examiner(random_model, device="cpu", kv_cache_memory_bytes=64 << 20)
    results = evaluate.long_prompt_measures(examiner, 2)
    assert [(measure.num_right, measure.num) for measure in results] == [(2, 2), (3, 3)] * 2

    replies = iter(random.Random(0).sample(range(100), 100))
    answers = examiner.reply

    def changing(cases: list[Case], *, temperature: float = 0.0) -> list[Answered]:
        texts = [Reply(text=str(next(replies)), content="", thought="", calls=()) for _ in cases]
        return [Answered(one.case, text) for one, text in zip(answers(cases), texts, strict=True)]

    monkeypatch.setattr(examiner, "reply", changing)
    results = evaluate.long_prompt_measures(examiner, 2)
    assert [measure.num_right for measure in results] == [2, 0] * 2, "other words in company count as wrong"
    examiner.close()
