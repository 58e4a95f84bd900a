"""Generates dialogues with tools from the catalogue: alone, together, and mixed with made-up ones."""

from tools.bundled_model.dialogues.calling import answered_calls, call_turn, finish_with, no_fit_turn
from tools.bundled_model.dialogues.catalogue import ask, declare
from tools.bundled_model.dialogues.catalogue_entries import ENTRIES
from tools.bundled_model.dialogues.conversation import Call, Dialogue, ReplyTurn, Tool, UserTurn
from tools.bundled_model.dialogues.requests import Request
from tools.bundled_model.dialogues.tool_maker import make_tool
from tools.bundled_model.dialogues.words import Source

_NUM_OTHERS = (0, 0, 0, 1, 1, 2, 3)
_NO_TOOLS = "I have no tools here, so I cannot do that."


def everyday(source: Source) -> Dialogue:
    """A call, a call and its answer, two calls, a request that nothing here can meet, or no tools at all."""
    roll = source.rng.random()
    tools, requests = _tools_and_requests(source, num_requests=2 if roll < 0.12 else 1)
    text = requests[0].text
    turns: list[UserTurn | ReplyTurn]
    if roll < 0.12:
        second = requests[1].text
        join = source.pick((" Then ", " Also, ", " And "))
        if text[-1] not in ".?!":
            join = f".{join}" if text[-1].isalpha() or text[-1] in "\"'`" else f"\n{join.lstrip()}"
        text += join + second[0].lower() + second[1:]
        turns = [UserTurn(text), call_turn([request.call for request in requests])]
    elif roll < 0.55:
        turns = [UserTurn(text), call_turn([requests[0].call])]
    elif roll < 0.85:
        turns = [UserTurn(text), *answered_calls(source, [requests[0].call]), *_and_now_for(source, requests[0])]
    elif roll < 0.96:
        name = requests[0].call.tool_name
        tools = [tool for tool in tools if tool.name != name] or [make_tool(source).tool]
        turns = [UserTurn(text), no_fit_turn(source, tools)]
    else:
        tools = []
        turns = [UserTurn(text), ReplyTurn(_NO_TOOLS, "This needs a tool, and I have none.")]
    return finish_with(source, "everyday", tools, turns)


def _and_now_for(source: Source, request: Request) -> list[UserTurn | ReplyTurn]:
    """Sometimes: the same again with another value, in few words. Only where it is clear which value changes."""
    values = list(request.call.arguments.items())
    if len(values) != 1 or not isinstance(values[0][1], str) or source.chance(0.5):
        return []
    other = source.place() if values[0][1].istitle() else source.word()
    form = source.pick(("And {}?", "What about {}?", "How about {}?", "And for {}?", "Now {}", "The same for {}."))
    call = Call(request.call.tool_name, {values[0][0]: other})
    return [UserTurn(form.format(other)), call_turn([call])]


def _tools_and_requests(source: Source, num_requests: int) -> tuple[list[Tool], list[Request]]:
    """Entries that are asked for, and others that are not."""
    num_others = source.pick(_NUM_OTHERS)
    entries = source.sample(ENTRIES, num_requests + num_others)
    tools: list[Tool] = []
    requests: list[Request] = []
    for index, entry in enumerate(entries):
        if index < num_requests:
            tool, names = declare(source, entry)
            requests.append(ask(source, entry, tool, names))
        else:
            tool = declare(source, entry)[0] if source.chance(0.6) else make_tool(source).tool
        if all(tool.name != other.name for other in tools):
            tools.append(tool)
    source.rng.shuffle(tools)
    return tools, requests
