"""Generates dialogues that need no tool, with and without tools available, with one question or several."""

from collections.abc import Callable

from tools.bundled_model.dialogues.calling import THINKING_SHARE
from tools.bundled_model.dialogues.conversation import Dialogue, Exchange, ReplyTurn, UserTurn
from tools.bundled_model.dialogues.system_prompts import make_system_prompt
from tools.bundled_model.dialogues.tool_maker import make_tools
from tools.bundled_model.dialogues.words import Source

ExchangeMaker = Callable[[Source], Exchange]


def plain(source: Source, kind: str, first: ExchangeMaker, others: tuple[ExchangeMaker, ...]) -> Dialogue:
    """One exchange of this kind, sometimes with some of any kind after it."""
    turns: list[UserTurn | ReplyTurn] = []
    has_tools = source.chance(0.3)
    for index in range(source.pick((1, 1, 1, 2, 3))):
        exchange = (first if index == 0 else source.pick(others))(source)
        thought = f"{exchange.thought} No tool is needed." if has_tools else exchange.thought
        turns += [UserTurn(exchange.question), ReplyTurn(exchange.answer, thought)]
    tools = tuple(made.tool for made in make_tools(source, source.pick((1, 2, 3)))) if has_tools else ()
    return Dialogue(kind, tuple(turns), tools, make_system_prompt(source), source.chance(THINKING_SHARE))
