"""Conversations and tools that the template tests render."""

from typing import Any

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City"}},
            "required": ["city"],
        },
    },
}
RICH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "book_table",
        "description": "Book a <table> & more",
        "parameters": {
            "type": "object",
            "properties": {
                "when": {
                    "type": "string",
                    "enum": ["noon", "night"],
                    "nullable": True,
                    "description": "Time",
                },
                "Guests": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"age": {"type": "integer"}, "Name": {"type": "string"}},
                        "required": ["Name"],
                        "extra": {"b": 1, "A": [True, None, 2.5]},
                    },
                },
                "level": {"type": "integer", "enum": [1, 2]},
                "place": {
                    "type": "object",
                    "properties": {"row": {"type": "number"}},
                    "required": ["row"],
                    "description": "Where",
                },
                "note": {"type": ["string", "null"]},
            },
            "required": ["when", "Guests"],
        },
        "response": {"type": "object", "description": "The booking"},
    },
}
RICH_DECLARATION = (
    '<|tool>declaration:book_table{description:<|"|>Book a <table> & more<|"|>,parameters:{properties:{'
    'Guests:{items:{extra:{<|"|>A<|"|>:[true,null,2.5],<|"|>b<|"|>:1},properties:{'
    'age:{type:<|"|>INTEGER<|"|>},Name:{type:<|"|>STRING<|"|>}},required:[<|"|>Name<|"|>],'
    'type:<|"|>OBJECT<|"|>},type:<|"|>ARRAY<|"|>},'
    'level:{type:<|"|>INTEGER<|"|>},'
    'note:{type:[<|"|>STRING<|"|>,<|"|>NULL<|"|>]},'
    'place:{description:<|"|>Where<|"|>,properties:{row:{type:<|"|>NUMBER<|"|>}},required:[<|"|>row<|"|>],'
    'type:<|"|>OBJECT<|"|>},'
    'when:{description:<|"|>Time<|"|>,enum:[<|"|>noon<|"|>,<|"|>night<|"|>],nullable:true,type:<|"|>STRING<|"|>}},'
    'required:[<|"|>when<|"|>,<|"|>Guests<|"|>],type:<|"|>OBJECT<|"|>},'
    'response:{description:<|"|>The booking<|"|>,type:<|"|>OBJECT<|"|>}}<tool|>'
)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def tool_call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(content: Any, call_id: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


CALLS_PARIS = assistant(tool_calls=[tool_call("get_weather", {"city": "Paris"}, "call_1")])
WEATHER_CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    user("Weather in Paris?"),
    CALLS_PARIS,
    tool_result({"temp": 20, "sky": "clear"}, "call_1"),
    assistant("It is 20 degrees and clear."),
]
