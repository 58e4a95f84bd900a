"""Generates the cases of the evaluation: tools and words that training never saw, and one long prompt repeatedly.

Only the everyday tools occur in training; what they are asked for is new.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from tools.bundled_model.dialogues.arithmetic import arithmetic
from tools.bundled_model.dialogues.calling import (
    call_turn,
    no_tool_fits,
    one_call,
    request_for,
    several_calls,
)
from tools.bundled_model.dialogues.conversation import Call, Dialogue, Parameter, ReplyTurn, Tool, UserTurn
from tools.bundled_model.dialogues.everyday import everyday
from tools.bundled_model.dialogues.filler import make_log
from tools.bundled_model.dialogues.results import make_result
from tools.bundled_model.dialogues.tool_maker import make_tools
from tools.bundled_model.dialogues.values import pattern
from tools.bundled_model.dialogues.words import Lexicon, Source

Group = Literal["one call", "several calls", "no tool fits", "answer from a result", "everyday tools", "arithmetic"]

REGEX_SCAN = Tool(
    "regex_scan",
    "Scan text with a regular expression and return every match.",
    (
        Parameter("flags", "string", "", ("", "i", "m"), is_required=False),
        Parameter("pattern", "string", "The regular expression"),
    ),
)
LONG_PROMPT_CHARS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One reply to be given: the dialogue up to there, and what must be in it."""

    group: Group
    dialogue: Dialogue  # ends where the reply begins
    calls: tuple[Call, ...] = ()  # expected; none: an answer in words
    facts: tuple[str, ...] = ()  # the answer must hold them

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.dialogue.messages()

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [tool.as_json() for tool in self.dialogue.tools]


def make_cases(num: int, seed: int) -> list[Case]:
    """So many of each group, every second one with thinking on."""
    return [
        case
        for group, make in _MAKERS.items()
        for case in _alternately_thinking(group, make, random.Random(f"{seed} {group}"), num)
    ]


def long_prompts(num: int, seed: int) -> list[Case]:
    """One tool and ten thousand characters of log, another log and pattern each. The words are nothing special."""
    source = Source(random.Random(seed), Lexicon.of(held_out=False))
    cases = []
    for _ in range(num):
        wanted = pattern(source)
        head = f'Scan the following log for the pattern "{wanted}":\n\n'
        text = head + make_log(source, LONG_PROMPT_CHARS - len(head))
        call = Call(REGEX_SCAN.name, {"pattern": wanted})
        cases.append(Case(group="one call", dialogue=Dialogue("", (UserTurn(text),), (REGEX_SCAN,)), calls=(call,)))
    return cases


def _alternately_thinking(group: Group, make: Callable[[Source], Case], rng: random.Random, num: int) -> Iterator[Case]:
    # Tools of the everyday kind are the same on both sides; the held-out words are in what is asked.
    source = Source(rng, Lexicon.of(held_out=True))
    for index in range(num):
        case = make(source)
        yield replace(case, group=group, dialogue=replace(case.dialogue, thinks=index % 2 == 1))


def _last_question(dialogue: Dialogue) -> Case:
    """The reply that follows the last question."""
    num_turns = dialogue.last_user_turn + 1
    reply = dialogue.turns[num_turns]
    assert isinstance(reply, ReplyTurn), "a question is followed by a reply"
    return Case(group="one call", dialogue=replace(dialogue, turns=dialogue.turns[:num_turns]), calls=reply.calls)


def _one_call(source: Source) -> Case:
    return _last_question(one_call(source))


def _several_calls(source: Source) -> Case:
    return _last_question(several_calls(source))


def _no_tool_fits(source: Source) -> Case:
    return _last_question(no_tool_fits(source))


def _everyday(source: Source) -> Case:
    while not (case := _last_question(everyday(source))).calls:
        pass
    return case


def _answer(source: Source) -> Case:
    made = make_tools(source, source.between(1, 3))
    request = request_for(source, source.pick(made), made)
    result = make_result(source)
    turns = (UserTurn(request.text), call_turn([request.call], (result.text,)))
    dialogue = Dialogue("", turns, tuple(one.tool for one in made))
    return Case(group="answer from a result", dialogue=dialogue, facts=result.told)


def _arithmetic(source: Source) -> Case:
    exchange = arithmetic(source)
    dialogue = Dialogue("", (UserTurn(exchange.question),))
    return Case(group="arithmetic", dialogue=dialogue, facts=(exchange.answer,))


_MAKERS: dict[Group, Callable[[Source], Case]] = {
    "one call": _one_call,
    "several calls": _several_calls,
    "no tool fits": _no_tool_fits,
    "answer from a result": _answer,
    "everyday tools": _everyday,
    "arithmetic": _arithmetic,
}
