"""Generates datasets: single prompts, sessions of several turns, chats with functions to call."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from facet.bench.config import BenchConfig
from facet.bench.dialogue import Content, Conversation, Dataset, Turn
from facet.bench.random_prompts import RandomText, RandomTokens, common_words
from facet.errors import ConfigError

if TYPE_CHECKING:  # token ids need no tokenizer, nor the library beneath it
    from facet.tokens import Tokenizer

_DEFAULT_TURNS = {"sessions": 5, "tools": 1}
_MOST_TOOLS = 8  # offered in one chat


def random_prompts(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    writer = TurnWriter(config, tokenizer)
    turns = writer.first_turns()
    return Dataset(conversations=[[turn] for turn in turns], remarks=writer.remarks)


def sessions(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    """A long first turn and short ones after it, each sent with the whole history: a load for prefix caches.

    --random-prefix-len tokens are common to all sessions.
    """
    writer = TurnWriter(config, tokenizer)
    conversations: list[Conversation] = []
    for first in writer.first_turns():
        later = [
            writer.turn(None, config.turn_input_len, writer.output_len(), begins=False)
            for _ in range(_num_turns(config) - 1)
        ]
        conversations.append([first, *later])
    return Dataset(conversations=conversations, remarks=writer.remarks)


def tool_chats(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    """A text and a task for it, with a few functions that could do the task. Calls get a result (backends.py)."""
    writer = TurnWriter(config, tokenizer)
    conversations: list[Conversation] = []
    for first in writer.first_turns():
        names = writer.random.permutation(list(_TASKS))[: 1 + writer.random.integers(_MOST_TOOLS)].tolist()
        fields = {"tools": [_tool(name) for name in names], "tool_choice": "auto"}
        turns = []
        for number in range(_num_turns(config)):
            task = _TASKS[names[number % len(names)]][0]
            content = f"{first.content}\n\n{task}" if number == 0 else task
            turns.append(Turn(content=content, max_tokens=writer.output_len(), fields=fields))
        conversations.append(turns)
    return Dataset(conversations=conversations, remarks=writer.remarks)


def _num_turns(config: BenchConfig) -> int:
    return config.num_turns or _DEFAULT_TURNS[config.dataset_name]


class TurnWriter:
    """Turns of a length, in the form that the backend takes."""

    def __init__(self, config: BenchConfig, tokenizer: "Tokenizer | None") -> None:
        self._config = config
        self._tokens = RandomTokens(config.seed, config.vocab_size, tokenizer)
        self._text = RandomText(self._tokens, tokenizer) if tokenizer is not None else None
        self.random = self._tokens.random
        self.remarks: list[str] = []
        if config.is_chat and tokenizer is None:
            self.remarks.append(
                "Without --tokenizer, prompts of a chat are about as long as asked for; input tokens are as the server "
                "counted them."
            )

    def first_turns(self) -> list[Turn]:
        """One for each prompt of the run, with their common prefix."""
        config = self._config
        input_lens = self._lengths(config.input_len or config.random_input_len, config.num_prompts, least=0)
        if config.random_prefix_len + min(input_lens) < 1:
            raise ConfigError(
                "--random-input-len and --random-prefix-len leave prompts without a token; raise one of them."
            )
        output_lens = [self.output_len() for _ in input_lens]
        prefix = self._write(config.random_prefix_len, begins=True) if config.random_prefix_len else None
        return [
            self.turn(prefix, num_input, num_output, begins=prefix is None)
            for num_input, num_output in zip(input_lens, output_lens, strict=True)
        ]

    def output_len(self) -> int:
        return self._lengths(self._config.output_len or self._config.random_output_len, 1, least=1)[0]

    def turn(self, prefix: Content | None, num_input: int, num_output: int, *, begins: bool) -> Turn:
        num_prefix = 0 if prefix is None else self._config.random_prefix_len
        if prefix is not None and num_input == 0:
            content = prefix
        else:
            content = _joined(prefix, self._write(num_input, begins=begins))
        return Turn(content=content, max_tokens=num_output, num_tokens=num_prefix + num_input)

    def _lengths(self, length: int, count: int, *, least: int) -> list[int]:
        ratio = self._config.random_range_ratio
        low, high = max(math.floor(length * (1 - ratio)), least), max(math.ceil(length * (1 + ratio)), least)
        return [int(drawn) for drawn in self.random.integers(low, high + 1, size=count)]

    def _write(self, num_tokens: int, *, begins: bool) -> Content:
        if self._text is not None:
            # A chat's template adds tokens of its own around a message; those of the message are the number asked for.
            return self._text.write(num_tokens, begins=begins and not self._config.is_chat)
        if self._config.is_chat:
            return common_words(self.random, num_tokens)
        return self._tokens.ids(num_tokens)


def _joined(first: Content | None, second: Content) -> Content:
    if first is None:
        return second
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.concatenate([first, second])
    assert isinstance(first, str), "prefixes are token ids or text"
    assert isinstance(second, str), "a dataset writes all its content in one form"
    return first + (second if second.startswith(" ") else f" {second}")


# A task that calls for the function of that name, what the function does, and its parameters: those with a type are
# required, those with choices are not.
_TASKS: dict[str, tuple[str, str, dict[str, str | list[str]]]] = {
    "get_weather": (
        "What is the weather in Lisbon tomorrow, in celsius?",
        "Weather for a place and a day.",
        {"place": "string", "day": "string", "unit": ["celsius", "fahrenheit"]},
    ),
    "search_text": (
        "Find every line above that holds a number of four digits.",
        "Search a text with a regular expression and return every match.",
        {"pattern": "string", "flags": ["", "i", "m"]},
    ),
    "convert_currency": (
        "How much are 129.50 euros in yen?",
        "Convert an amount of money from one currency to another.",
        {"amount": "number", "from_currency": "string", "to_currency": "string"},
    ),
    "create_event": (
        "Put a meeting with Ana into my calendar on Friday at three, for 45 minutes.",
        "Create an event in the user's calendar.",
        {"title": "string", "start": "string", "minutes": "integer", "repeat": ["never", "daily", "weekly"]},
    ),
    "send_message": (
        "Tell Jonas that I will be ten minutes late.",
        "Send a short message to one person.",
        {"recipient": "string", "text": "string", "urgency": ["low", "normal", "high"]},
    ),
    "query_database": (
        "How many orders were placed last month, by country?",
        "Run a read-only SQL query.",
        {"query": "string", "max_rows": "integer"},
    ),
    "read_file": (
        "Show me the first 40 lines of the build log.",
        "Read lines of a file.",
        {"path": "string", "first_line": "integer", "num_lines": "integer"},
    ),
    "plan_route": (
        "How long does it take by train from Lyon to Marseille?",
        "Plan a journey between two places.",
        {"origin": "string", "destination": "string", "by": ["train", "car", "bicycle", "foot"]},
    ),
}


def _tool(name: str) -> dict[str, Any]:
    _, description, parameters = _TASKS[name]
    properties = {
        parameter: {"type": kind} if isinstance(kind, str) else {"type": "string", "enum": kind}
        for parameter, kind in parameters.items()
    }
    required = [parameter for parameter, kind in parameters.items() if isinstance(kind, str)]
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
