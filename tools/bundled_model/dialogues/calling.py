"""Generates dialogues with tools: one call, several, none that fits, missing values, and what comes after."""

from collections.abc import Sequence

from tools.bundled_model.dialogues.conversation import Call, Dialogue, ReplyTurn, Tool, UserTurn, listed
from tools.bundled_model.dialogues.requests import Request, make_request, without_arguments
from tools.bundled_model.dialogues.results import make_result
from tools.bundled_model.dialogues.small_talk import small_talk
from tools.bundled_model.dialogues.system_prompts import make_system_prompt
from tools.bundled_model.dialogues.tool_maker import MadeTool, make_tool, make_tools
from tools.bundled_model.dialogues.words import Source

_NUM_TOOLS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5)
_JOINS = (". Then ", ". Also, ", ", and then ", " and ", "; also ", "\n", ". After that, ", ". Next, ")

THINKING_SHARE = 0.3


def one_call(source: Source) -> Dialogue:
    made = make_tools(source, source.pick(_NUM_TOOLS))
    request = request_for(source, source.pick(made), made)
    return finish(source, "call", made, [UserTurn(request.text), call_turn([request.call])])


def several_calls(source: Source) -> Dialogue:
    """One request that needs two calls or three, of one tool or of different ones."""
    made = make_tools(source, source.pick(_NUM_TOOLS))
    requests = [request_for(source, source.pick(made), made) for _ in range(source.pick((2, 2, 2, 3)))]
    text = requests[0].text
    for request in requests[1:]:
        # A value at the end of a line would run on into the next sentence.
        join = "\n" if "\n" in text + request.text else source.pick(_JOINS)
        if join == "\n":
            text += join + request.text
        else:
            text = text.rstrip(".!?") + join + request.text[0].lower() + request.text[1:]
    calls = [request.call for request in requests]
    replies = answered_calls(source, calls) if source.chance(0.25) else [call_turn(calls)]
    return finish(source, "several calls", made, [UserTurn(text), *replies])


def no_tool_fits(source: Source) -> Dialogue:
    """A request for a tool that is not among those declared, though one may do the same to another thing."""
    made = make_tools(source, source.pick(_NUM_TOOLS) + 1)
    missing = made.pop(source.between(0, len(made) - 1))
    things = {word for other in made for word in other.thing.split()}
    while things & set(missing.thing.split()):
        missing = make_tool(source, verb=missing.verb)
    says_little = source.chance(0.15)
    text = without_arguments(source, missing) if says_little else make_request(source, missing).text
    return finish(source, "no tool fits", made, [UserTurn(text), no_fit_turn(source, [other.tool for other in made])])


def too_little_said(source: Source) -> Dialogue:
    """A request that leaves out what the tool requires: the model asks for it."""
    made = make_tools(source, source.pick(_NUM_TOOLS))
    while not (able := [one for one in made if any(parameter.is_required for parameter in one.tool.parameters)]):
        made = make_tools(source, source.pick(_NUM_TOOLS))
    chosen = source.pick(able)
    needed = [parameter.words for parameter in chosen.tool.parameters if parameter.is_required]
    is_only = sum(other.thing == chosen.thing for other in made) == 1
    text = without_arguments(source, chosen) if is_only else f"Use {chosen.tool.name}."
    reply = ReplyTurn(
        text=f"Please tell me the {listed(needed)}.",
        thought=f"This needs {chosen.tool.name}. The request does not say the {listed(needed)}.",
    )
    return finish(source, "too little said", made, [UserTurn(text), reply])


def call_and_answer(source: Source) -> Dialogue:
    """Calls, their results, and the answer made from them; sometimes a second question follows."""
    made = make_tools(source, source.pick(_NUM_TOOLS))
    turns: list[UserTurn | ReplyTurn] = []
    for _ in range(source.pick((1, 1, 1, 2, 2, 3))):
        request = request_for(source, source.pick(made), made)
        turns += [UserTurn(request.text), *answered_calls(source, [request.call])]
    return finish(source, "answer", made, turns)


def request_for(source: Source, made: MadeTool, tools: Sequence[MadeTool]) -> Request:
    """A request for one of these tools that cannot be taken for another."""
    shares_thing = sum(other.thing == made.thing for other in tools) > 1
    return make_request(source, made, only_literal_verb=shares_thing)


def call_turn(calls: Sequence[Call], results: tuple[str, ...] = ()) -> ReplyTurn:
    """Calls, after the thought that names the tools and the values."""
    plans = [_plan(call) for call in calls]
    if len(plans) == 1:
        thought = f"This needs {plans[0]}."
    else:
        thought = f"This needs {len(plans)} calls. First {'. Then '.join(plans)}."
    return ReplyTurn(thought=thought, calls=tuple(calls), results=results)


def answered_calls(source: Source, calls: Sequence[Call]) -> list[ReplyTurn]:
    """Calls with results, and the reply that tells them."""
    results = [make_result(source) for _ in calls]
    names = listed([call.tool_name for call in calls])
    answer = ReplyTurn(
        text=" ".join(result.answer for result in results),
        thought=f"{names} answered. I tell the user what it says.",
    )
    return [call_turn(calls, tuple(result.text for result in results)), answer]


def no_fit_turn(source: Source, tools: Sequence[Tool]) -> ReplyTurn:
    names = listed([tool.name for tool in tools])
    opening = source.pick(("No tool fits this request.", "None of my tools can do that."))
    return ReplyTurn(text=f"{opening} I can use {names}.", thought=f"The tools are {names}. None of them fits.")


def finish(source: Source, kind: str, made: Sequence[MadeTool], turns: Sequence[UserTurn | ReplyTurn]) -> Dialogue:
    return finish_with(source, kind, [one.tool for one in made], turns)


def finish_with(source: Source, kind: str, tools: Sequence[Tool], turns: Sequence[UserTurn | ReplyTurn]) -> Dialogue:
    """The dialogue, with or without small talk before it, a system prompt and thoughts."""
    before: list[UserTurn | ReplyTurn] = []
    if source.chance(0.1):
        exchange = small_talk(source)
        before = [UserTurn(exchange.question), ReplyTurn(exchange.answer, exchange.thought)]
    thinks = source.chance(THINKING_SHARE)
    return Dialogue(kind, (*before, *turns), tuple(tools), make_system_prompt(source), thinks)


def _plan(call: Call) -> str:
    if not call.arguments:
        return f"{call.tool_name} without arguments"
    names = sorted(call.arguments, key=str.lower)
    return f"{call.tool_name} with {listed([f'{name} {_told(call.arguments[name])}' for name in names])}"


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return listed(value) if isinstance(value, tuple) else str(value)
