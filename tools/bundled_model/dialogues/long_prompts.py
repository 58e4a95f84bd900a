"""Generates long prompts: a request with a long text before or after it. The call must not copy the text."""

from tools.bundled_model.dialogues.calling import call_turn, finish_with, no_fit_turn, request_for
from tools.bundled_model.dialogues.catalogue import ask, declare
from tools.bundled_model.dialogues.catalogue_entries import REGEX_SCAN
from tools.bundled_model.dialogues.conversation import Dialogue, ReplyTurn, Tool, UserTurn
from tools.bundled_model.dialogues.filler import make_filler
from tools.bundled_model.dialogues.tool_maker import make_tool, make_tools
from tools.bundled_model.dialogues.words import Source

# Longer than the longest that evaluation asks about.
MAX_CHARS = 12_000
_MIN_CHARS = 400


def long_prompt(source: Source) -> Dialogue:
    """A call, or that no tool fits, with a filler whose length is spread evenly over its logarithm."""
    num_chars = int(_MIN_CHARS * (MAX_CHARS / _MIN_CHARS) ** source.rng.random())
    return with_filler(source, "long prompt", num_chars)


def very_long_prompt(source: Source) -> Dialogue:
    """The upper end only."""
    return with_filler(source, "very long prompt", source.between(7_000, MAX_CHARS))


def with_filler(source: Source, kind: str, num_chars: int) -> Dialogue:
    roll = source.rng.random()
    tools: list[Tool]
    reply: ReplyTurn
    if roll < 0.6:
        tool, names = declare(source, REGEX_SCAN)
        request = ask(source, REGEX_SCAN, tool, names)
        tools = [tool] if source.chance(0.7) else [tool, make_tool(source).tool]
        text, reply = request.text, call_turn([request.call])
    else:
        made = make_tools(source, source.pick((1, 2, 3)))
        chosen = source.pick(made)
        request = request_for(source, chosen, made)
        text, tools = request.text, [one.tool for one in made]
        reply = call_turn([request.call])
        if roll > 0.92:
            tools = [tool for tool in tools if tool.name != chosen.tool.name]
            tools = tools or [make_tool(source).tool]
            reply = no_fit_turn(source, tools)
    question = beside_filler(source, text, make_filler(source, num_chars))
    return finish_with(source, kind, tools, [UserTurn(question), reply])


def beside_filler(source: Source, request: str, filler: str) -> str:
    """The request before the text or after it."""
    if source.chance(0.6):
        # A colon after bare text could be read as part of the value.
        colon = ":" if request[-1] in "\"'`" and source.chance(0.7) else ""
        return f"{request}{colon}{source.pick((chr(10), chr(10) * 2))}{filler}"
    return f"{filler}\n\n{request}"
