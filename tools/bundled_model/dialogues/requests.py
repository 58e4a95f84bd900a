"""Generates requests: what a user says to have a made-up tool called, and the call that is meant.

Every value appears in the request exactly as it must appear in the call, with a cue: the parameter's name, or, where no
other parameter could take the value, only its place in the sentence. What is not mentioned is not passed.
"""

from dataclasses import dataclass

from tools.bundled_model.dialogues import values
from tools.bundled_model.dialogues.conversation import Call, Parameter, Value, listed
from tools.bundled_model.dialogues.numbers_in_words import in_words
from tools.bundled_model.dialogues.tool_maker import MadeTool, synonyms
from tools.bundled_model.dialogues.words import ASKING_VERBS, Source

_QUOTES = ('"', '"', '"', "'", "`")
_ARTICLES = ("the", "the", "the", "a", "my", "this", "our", "")
_PREPOSITIONS = ("for", "for", "of", "in", "about", "on", "at", "from", "named", "called", "")
# What stands before the verb, and what at the end.
_OPENINGS = (
    ("", "."), ("", "."), ("", ""), ("", "!"), ("", " please"), ("", ", please."),
    ("Please ", "."), ("Please ", ""), ("Can you ", "?"), ("Could you ", "?"), ("Could you please ", "?"),
    ("Would you ", "?"), ("I want to ", "."), ("I need to ", "."), ("I need you to ", "."), ("I would like to ", "."),
    ("Hey, ", "."), ("Now ", "."), ("Help me ", "."), ("You should ", "."), ("Hi! ", "."), ("Let us ", "."),
    ("Go and ", "."), ("Quick, ", "!"),
)  # fmt: skip
# Where the verb decides, it stands as in the tool's name: in small letters.
_OPENINGS_BEFORE_VERB = tuple(opening for opening in _OPENINGS if opening[0])
_QUESTIONS = (
    ("What is the {}", "?"), ("What's the {}", "?"), ("Which {} is there", "?"), ("Tell me the {}", "."),
    ("The {}", "?"), ("How is the {}", "?"), ("Is there a {}", "?"), ("I need the {}", "."),
    ("Do you have the {}", "?"), ("The {}", ""),
)  # fmt: skip
_MAX_NUMBER_IN_WORDS = 12


@dataclass(frozen=True, slots=True)
class Request:
    """What was said and what it means."""

    text: str
    call: Call


def make_request(source: Source, made: MadeTool, *, only_literal_verb: bool = False) -> Request:
    """A request for one call. `only_literal_verb` where another tool does something else to the same thing."""
    arguments = choose_arguments(source, made)
    mentioned = [parameter for parameter in made.tool.parameters if parameter.name in arguments]
    if source.chance(0.5):
        source.rng.shuffle(mentioned)
    # What comes after a list could be taken for a part of it.
    mentioned.sort(key=lambda parameter: parameter.type == "array")
    call = Call(made.tool.name, arguments)
    form = source.rng.random()
    if form < 0.14:
        text = _naming_the_tool(source, made, mentioned, arguments)
    elif form < 0.24 and mentioned:
        text = _line_by_line(source, made, mentioned, arguments, only_literal_verb)
    elif form < 0.32 and mentioned:
        opening, end = source.pick((("", "."), ("", ""), ("please ", "."), ("can you ", "?")))
        clauses = listed([_clause(source, parameter, arguments[parameter.name]) for parameter in mentioned])
        text = f"With {clauses}, {opening}{_deed(source, made, only_literal_verb)}{end}"
    else:
        text = _in_a_sentence(source, made, mentioned, arguments, only_literal_verb)
    text = _varied_case(source, text)
    return Request(_with_aside(source, text) if source.chance(0.12) else text, call)


def choose_arguments(source: Source, made: MadeTool) -> dict[str, Value]:
    """Values for what is required and for some of the rest."""
    share = source.pick((0.0, 0.5, 1.0))
    return {
        parameter.name: _value(source, made, parameter)
        for parameter in made.tool.parameters
        if parameter.is_required or source.chance(share)
    }


def without_arguments(source: Source, made: MadeTool) -> str:
    """A request that mentions no value at all."""
    opening, end = source.pick(_OPENINGS)
    return _varied_case(source, f"{opening}{_deed(source, made, False)}{end}")


def _value(source: Source, made: MadeTool, parameter: Parameter) -> Value:
    match parameter.type:
        case "integer":
            return values.whole_number(source)
        case "number":
            return values.any_number(source)
        case "boolean":
            return source.chance(0.65)
        case "array":
            return values.short_list(source)
        case "string":
            if parameter.choices:
                return source.pick(parameter.choices)
            return made.text_makers.get(parameter.name, values.any_text)(source)


def _deed(source: Source, made: MadeTool, only_literal_verb: bool) -> str:
    """The verb and the thing."""
    # Which words mean the same can only be known of words seen in training.
    is_literal = only_literal_verb or source.lexicon.held_out or source.chance(0.7)
    verb = made.verb if is_literal else source.pick(synonyms(made.verb))
    article = source.pick(_ARTICLES)
    thing = made.thing + "s" if not article and source.chance(0.3) else made.thing
    return f"{verb} {article} {thing}" if article else f"{verb} {thing}"


def _in_a_sentence(
    source: Source, made: MadeTool, mentioned: list[Parameter], arguments: dict[str, Value], only_literal_verb: bool
) -> str:
    opening, end = source.pick(_OPENINGS_BEFORE_VERB if only_literal_verb else _OPENINGS)
    text = opening + _deed(source, made, only_literal_verb)
    if made.verb in ASKING_VERBS and not only_literal_verb and source.chance(0.35):
        question, end = source.pick(_QUESTIONS)
        text = question.format(made.thing)
    main = _only_free_text(made)
    if main is not None and main in mentioned and source.chance(0.55):
        mentioned = [parameter for parameter in mentioned if parameter != main]
        preposition, value = source.pick(_PREPOSITIONS), arguments[main.name]
        text += f" {preposition} {_said(source, value)}" if preposition else f" {_quoted(source, value)}"
    tails = []
    clauses = []
    for parameter in mentioned:
        tail = _tail(source, parameter, arguments[parameter.name])
        if tail:
            tails.append(tail)
        else:
            clauses.append(_clause(source, parameter, arguments[parameter.name]))
    if clauses:
        form = source.between(0, 5)
        if form <= 2:
            text += f" {source.pick(('with', 'with', 'using', 'for', 'at'))} {listed(clauses)}"
        elif form == 3:
            text += f", {', '.join(clauses)}"
        elif form == 4:
            text += f" ({', '.join(clauses)})"
        else:
            text += "".join(f". {source.pick(('Use', 'Take', 'Set'))} {clause}" for clause in clauses)
    text += "".join(tails)
    return text + _end_after(text, end)


def _naming_the_tool(source: Source, made: MadeTool, mentioned: list[Parameter], arguments: dict[str, Value]) -> str:
    verb = source.pick(("Use", "Call", "Run", "Please call", "Please use", "Try", "Invoke"))
    name = source.pick(("{}", "{}", "`{}`", "the {} tool", "the tool {}")).format(made.tool.name)
    if not mentioned:
        return f"{verb} {name}{source.pick(('.', '', ' now.', ', please.'))}"
    clauses = [_clause(source, parameter, arguments[parameter.name]) for parameter in mentioned]
    text = f"{verb} {name} {source.pick(('with', 'with', 'for', 'and pass'))} {listed(clauses)}"
    return text + _end_after(text, source.pick((".", "")))


def _line_by_line(
    source: Source, made: MadeTool, mentioned: list[Parameter], arguments: dict[str, Value], only_literal_verb: bool
) -> str:
    opening, _ = source.pick(_OPENINGS_BEFORE_VERB if only_literal_verb else _OPENINGS)
    sign = source.pick((": ", " = ", ": "))
    bullet = source.pick(("", "", "- ", "* "))
    lines = [f"{opening}{_deed(source, made, only_literal_verb)}:"]
    for parameter in mentioned:
        value = arguments[parameter.name]
        lines.append(f"{bullet}{parameter.words}{sign}{_plain(source, value)}")
    return "\n".join(lines)


def _only_free_text(made: MadeTool) -> Parameter | None:
    """The parameter that any text without a cue must be meant for."""
    free = [
        parameter
        for parameter in made.tool.parameters
        if parameter.type in ("string", "array") and not parameter.choices
    ]
    return free[0] if len(free) == 1 and free[0].is_required and free[0].type == "string" else None


def _clause(source: Source, parameter: Parameter, value: Value) -> str:
    """The parameter's name and its value, to stand in a list of such clauses."""
    words = parameter.words
    if isinstance(value, bool):
        yes = source.pick(("on", "set to true", "true", "= true", "set to yes", "enabled"))
        no = source.pick(("off", "set to false", "false", "= false", "set to no", "disabled"))
        return f"{words} {yes if value else no}"
    said = _said(source, value)
    # Where a list begins is clear only after the name.
    form = source.pick((0, 4, 5, 7, 9)) if isinstance(value, tuple) else source.between(0, 9)
    if form <= 3:
        return f"{words} {said}"
    if form == 4:
        return f"{words} = {said}"
    if form == 5:
        return f"{words} set to {said}"
    if form == 6:
        return f"{said} as the {words}"
    if form == 7:
        return f"{words}: {said}"
    if form == 8:
        return f"{said} as {words}"
    return f"the {words} {said}"


def _tail(source: Source, parameter: Parameter, value: Value) -> str:
    """Words to put at the end of the sentence instead of a clause; empty: none."""
    if isinstance(value, bool) and source.chance(0.5):
        return f" {'with' if value else 'without'} {parameter.words}"
    if parameter.choices and source.chance(0.35):
        return source.pick((" in {}", ", {}")).format(_said(source, value))
    return ""


def _said(source: Source, value: Value) -> str:
    """A value inside a sentence: in quotes wherever its end would not be clear otherwise."""
    if isinstance(value, tuple):
        quote = source.pick(("", "", '"', "'"))
        items = [f"{quote}{item}{quote}" for item in value]
        return listed(items) if source.chance(0.7) else ", ".join(items)
    if isinstance(value, str):
        is_name = value.replace(" ", "").isalpha() and value.istitle()
        needs_quotes = not (value.isalnum() or is_name) and (" " in value or source.chance(0.5))
        return _quoted(source, value) if needs_quotes or source.chance(0.35) else value
    if isinstance(value, int) and value <= _MAX_NUMBER_IN_WORDS and source.chance(0.15):
        return in_words(value)
    return str(value)


def _plain(source: Source, value: Value) -> str:
    """A value at the end of a line."""
    if isinstance(value, bool):
        return source.pick(("true", "yes", "on") if value else ("false", "no", "off"))
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value) if source.chance(0.8) else _said(source, value)


def _quoted(source: Source, value: Value) -> str:
    quote = source.pick(_QUOTES)
    return f"{quote}{value}{quote}"


def _end_after(text: str, end: str) -> str:
    """A full stop right after a number, an address or a path could be read as part of it."""
    last_word = text.rsplit(" ", 1)[-1]
    return "" if end.startswith((".", "?", "!")) and not last_word.isalpha() and last_word[-1].isalnum() else end


def _with_aside(source: Source, text: str) -> str:
    """A sentence beside the request that has nothing to do with it."""
    if source.chance(0.6):
        aside = source.pick(
            (
                f"I am at the {source.word()}.",
                f"My {source.noun()} is {source.adjective()}.",
                f"I work on the {source.word()} {source.noun()}.",
                "I hope you can help me.",
                "I am in a hurry.",
                f"We talked about the {source.noun()}.",
            )
        )
        return f"{aside} {text}"
    space = " " if text[-1] in ".?!" else "\n"
    return f"{text}{space}{source.pick(('Thanks!', 'Thank you.', 'It is urgent.', 'Take your time.', 'Be quick.'))}"


def _varied_case(source: Source, text: str) -> str:
    return text[0].upper() + text[1:] if source.chance(0.85) else text
