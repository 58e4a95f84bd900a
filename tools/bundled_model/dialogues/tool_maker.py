"""Generates tools: what a tool does, its name, its description and its parameters.

What a tool does is a verb and a thing. Name, description and request are all made from these two, so a reader who
can match words finds the tool that a request means, whatever the words are.
"""

from dataclasses import dataclass

from tools.bundled_model.dialogues import values
from tools.bundled_model.dialogues.conversation import Parameter, ParameterType, Tool
from tools.bundled_model.dialogues.values import TextMaker
from tools.bundled_model.dialogues.words import SYNONYMS, Source

_MAX_PARAMETERS = 5


@dataclass(frozen=True, slots=True)
class MadeTool:
    """A tool together with what its maker knows about it."""

    tool: Tool
    verb: str
    thing: str  # one noun or two
    text_makers: dict[str, TextMaker]  # for parameters whose values are of a certain kind


@dataclass(frozen=True, slots=True)
class _UsualParameter:
    name: str
    type: ParameterType
    description: str
    make: TextMaker | None = None


# What parameters are often called, and what is then passed.
_USUAL_PARAMETERS = (
    _UsualParameter("city", "string", "The city", Source.place),
    _UsualParameter("location", "string", "Where it is", Source.place),
    _UsualParameter("place", "string", "Name of the place", Source.place),
    _UsualParameter("query", "string", "What to look for", values.phrase),
    _UsualParameter("text", "string", "The text", values.sentence),
    _UsualParameter("message", "string", "The message", values.sentence),
    _UsualParameter("title", "string", "The title", values.two_words),
    _UsualParameter("name", "string", "The name", Source.person),
    _UsualParameter("user", "string", "Name of the user", Source.person),
    _UsualParameter("recipient", "string", "Who receives it", Source.person),
    _UsualParameter("email", "string", "An e-mail address", values.email_address),
    _UsualParameter("url", "string", "The address of the page", values.web_address),
    _UsualParameter("path", "string", "Path of the file", values.file_path),
    _UsualParameter("file", "string", "The file to use", values.file_name),
    _UsualParameter("pattern", "string", "The regular expression", values.pattern),
    _UsualParameter("id", "string", "The identifier", values.code),
    _UsualParameter("code", "string", "The code", values.code),
    _UsualParameter("phone", "string", "The phone number", values.phone_number),
    _UsualParameter("date", "string", "The day", values.date),
    _UsualParameter("start_date", "string", "First day", values.date),
    _UsualParameter("end_date", "string", "Last day", values.date),
    _UsualParameter("time", "string", "Time of day", values.time_of_day),
    _UsualParameter("category", "string", "The category", values.one_word),
    _UsualParameter("keyword", "string", "A word to look for", values.one_word),
    _UsualParameter("limit", "integer", "How many at most"),
    _UsualParameter("count", "integer", "How many"),
    _UsualParameter("max_results", "integer", "Highest number of results"),
    _UsualParameter("page", "integer", "Number of the page"),
    _UsualParameter("quantity", "integer", "How many of them"),
    _UsualParameter("days", "integer", "Number of days"),
    _UsualParameter("minutes", "integer", "Number of minutes"),
    _UsualParameter("year", "integer", "The year"),
    _UsualParameter("width", "integer", "The width"),
    _UsualParameter("height", "integer", "The height"),
    _UsualParameter("price", "number", "The price"),
    _UsualParameter("amount", "number", "The amount"),
    _UsualParameter("radius", "number", "The radius"),
    _UsualParameter("weight", "number", "The weight"),
    _UsualParameter("speed", "number", "The speed"),
    _UsualParameter("verbose", "boolean", "Whether to say more"),
    _UsualParameter("recursive", "boolean", "Whether to go into folders"),
    _UsualParameter("urgent", "boolean", "Whether it is urgent"),
    _UsualParameter("details", "boolean", "Whether to give details"),
    _UsualParameter("tags", "array", "The tags"),
    _UsualParameter("names", "array", "The names"),
    _UsualParameter("items", "array", "The items"),
)
_TYPES: tuple[ParameterType, ...] = (
    "string", "string", "string", "string", "integer", "integer", "number", "boolean", "array",
)  # fmt: skip


def make_tool(source: Source, *, verb: str = "", thing: str = "") -> MadeTool:
    """A new tool; `verb` and `thing` fix what it does, to make one that is easily mistaken for another."""
    verb = verb or (source.verb() if source.chance(0.9) else source.made_up())
    thing = thing or _thing(source)
    text_makers: dict[str, TextMaker] = {}
    parameters: dict[str, Parameter] = {}
    for _ in range(source.pick((0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 4, _MAX_PARAMETERS))):
        parameter, maker = _parameter(source, thing, is_first=not parameters)
        # Names that begin alike or are part of each other could not be told apart in a request.
        taken = " ".join(parameters) + " " + thing + " " + verb
        if not any(word in taken.split() or word in taken.replace("_", " ").split() for word in _parts(parameter.name)):
            parameters[parameter.name] = parameter
            if maker is not None:
                text_makers[parameter.name] = maker
    name, description = _name_and_description(source, verb, thing)
    ordered = tuple(sorted(parameters.values(), key=lambda parameter: parameter.name.lower()))
    return MadeTool(Tool(name, description, ordered), verb, thing, text_makers)


def make_tools(source: Source, num: int) -> list[MadeTool]:
    """Different tools in random order. Some do to one thing what others do to another, or several things to one."""
    made = [make_tool(source)]
    while len(made) < num:
        kin = source.pick(made)
        relation = source.rng.random()
        if relation < 0.25:
            new = make_tool(source, verb=kin.verb)
        elif relation < 0.45:
            new = make_tool(source, thing=kin.thing)
        else:
            new = make_tool(source)
        if all(_can_be_told_apart(new, other) for other in made):
            made.append(new)
    source.rng.shuffle(made)
    return made


def synonyms(verb: str) -> tuple[str, ...]:
    """Other words for the same, the verb itself included."""
    return next((group for group in SYNONYMS if verb in group), (verb,))


def _can_be_told_apart(one: MadeTool, other: MadeTool) -> bool:
    if one.tool.name == other.tool.name:
        return False
    same_thing = set(one.thing.split()) & set(other.thing.split())
    return not same_thing or (one.thing == other.thing and one.verb not in synonyms(other.verb))


def _thing(source: Source) -> str:
    form = source.rng.random()
    if form < 0.55:
        return source.word()
    if form < 0.9:
        first, second = source.word(), source.word()
        return first if first == second else f"{first} {second}"
    return f"{source.adjective()} {source.word()}"


def _name_and_description(source: Source, verb: str, thing: str) -> tuple[str, str]:
    words = thing.split()
    form = source.rng.random()
    description = _description(source, verb, thing)
    if form < 0.62:
        name = "_".join([verb, *words])
    elif form < 0.76:
        name = "_".join([*words, verb])
    elif form < 0.84:
        name = verb + "".join(word.capitalize() for word in words)
    elif form < 0.90:
        name = "_".join(words)
    elif form < 0.95:  # a name that says nothing: the description must tell
        name = source.made_up() if source.chance(0.6) else f"{source.made_up()}_{source.made_up()}"
    else:  # a description that says nothing: the name must tell
        name, description = "_".join([verb, *words]), source.pick(("", "A useful tool.", "Call this when needed."))
    return name, description


def _description(source: Source, verb: str, thing: str) -> str:
    article = source.pick(("the", "a", "one", "any"))
    capital = verb.capitalize()
    return source.pick(
        (
            f"{capital} {article} {thing}.",
            f"{capital} {article} {thing}",
            f"{capital} {article} {thing} and return the result.",
            f"{capital} {article} {thing} for the user.",
            f"{capital} {article} {thing} in the {source.noun()}.",
            f"Can {verb} {article} {thing}.",
            f"Use this to {verb} {article} {thing}.",
            f"Lets you {verb} {article} {thing}.",
            f"{capital} {thing}.",
            f"Tool to {verb} {article} {thing}.",
            f"{capital} {article} {thing}. Returns the {source.noun()} as text.",
            f"{capital} {article} {thing}. The {source.noun()} must be {source.adjective()}.",
        )
    )


def _parameter(source: Source, thing: str, *, is_first: bool) -> tuple[Parameter, TextMaker | None]:
    is_required = source.chance(0.85 if is_first else 0.45)
    usual = source.pick(_USUAL_PARAMETERS)
    if source.chance(0.3 if source.is_inventive else 0.5) and not source.lexicon.held_out:
        description = usual.description if source.chance(0.8) else ""
        return Parameter(usual.name, usual.type, description, is_required=is_required), usual.make
    name = _parameter_name(source)
    type_ = source.pick(_TYPES)
    choices: tuple[str, ...] = ()
    if type_ == "string" and source.chance(0.3):
        choices = _choices(source)
    description = _parameter_description(source, name, thing) if source.chance(0.8) else ""
    return Parameter(name, type_, description, choices, is_required), None


def _parameter_name(source: Source) -> str:
    first = source.word()
    if source.chance(0.65):
        return first
    second = source.word()
    return f"{first}_{second}" if source.chance(0.85) else first + second.capitalize()


def _parameter_description(source: Source, name: str, thing: str) -> str:
    words = Parameter(name, "string").words
    return source.pick(
        (
            f"The {words}",
            f"The {words} of the {thing}",
            f"The {words} to use",
            f"Which {words} to take",
            f"{words.capitalize()} for this",
            f"{words.capitalize()}",
            f"The {words}.",
            f"What the {words} should be",
            # Values that are not for this call.
            f"The {words}, e.g. {values.any_text(source)}",
            f"The {words}. Default: {source.word()}",
        )
    )


def _choices(source: Source) -> tuple[str, ...]:
    make = source.pick((Source.adjective, Source.made_up, Source.noun))
    return tuple(dict.fromkeys(make(source) for _ in range(source.between(2, 5))))


def _parts(name: str) -> list[str]:
    return Parameter(name, "string").words.split()
