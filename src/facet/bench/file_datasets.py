"""Reads datasets from files. Entries that cannot be used are reported by number and skipped."""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facet.bench.config import BenchConfig
from facet.bench.dialogue import Content, Conversation, Dataset, Turn
from facet.errors import ConfigError

if TYPE_CHECKING:
    from facet.tokens import Tokenizer

_DEFAULT_OUTPUT_LEN = 256
_CHARACTERS_PER_TOKEN = 4  # about, in English; only where there is no tokenizer to ask
# Which ShareGPT conversations are run, as vLLM chooses them: neither trivial nor longer than small models take.
_LEAST_TOKENS, _MOST_PROMPT_TOKENS, _MOST_TOKENS = 4, 1024, 2048


class _EntryError(Exception):
    """What is wrong with one entry of a file."""


def sharegpt(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    """The first question of each conversation, with an answer as long as the recorded one."""
    path = _path_of(config)
    text = _read(path)
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} holds a JSON {type(entries).__name__}; a list of conversations is needed.")
    conversations: list[Conversation] = []
    complaints = []
    order = list(enumerate(entries, start=1))
    random.Random(config.seed).shuffle(order)
    for number, entry in order:
        if len(conversations) == config.num_prompts:
            break
        try:
            turn = _sharegpt_turn(entry, config, tokenizer)
        except _EntryError as error:
            complaints.append(f"{path}, entry {number}: {error}")
            continue
        if turn is not None:
            conversations.append([turn])
    return _dataset(path, conversations, complaints, config)


def custom(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    """A JSON object per line: `prompt` (text or token ids) or `messages`, optionally with `tools` and `max_tokens`."""
    path = _path_of(config)
    conversations: list[Conversation] = []
    complaints = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if len(conversations) == config.num_prompts:
            break
        if not line.strip():
            continue
        try:
            conversations.append([_custom_turn(line, config, tokenizer)])
        except _EntryError as error:
            complaints.append(f"{path}, line {number}: {error}")
    return _dataset(path, conversations, complaints, config)


def _dataset(path: Path, conversations: list[Conversation], complaints: Sequence[str], config: BenchConfig) -> Dataset:
    if not conversations:
        first = f" The first complaint: {complaints[0]}." if complaints else ""
        raise ConfigError(f"{path} has no entry that can be sent.{first}")
    remarks = []
    num_found = len(conversations)
    if num_found < config.num_prompts:
        remarks.append(f"{path} has {num_found} usable entries; they are sent again to make {config.num_prompts}.")
        conversations = [conversations[index % num_found] for index in range(config.num_prompts)]
    return Dataset(conversations=conversations, complaints=complaints, remarks=remarks)


def _sharegpt_turn(entry: Any, config: BenchConfig, tokenizer: "Tokenizer | None") -> Turn | None:
    """A turn of ShareGPT. None for a valid conversation that is not used: too few turns, too short or too long."""
    said = list(_sayings(entry))
    if len(said) < 2:
        return None
    num_prompt = _count(said[0], tokenizer)
    num_answer = config.output_len or _count(said[1], tokenizer)
    is_short = num_prompt < _LEAST_TOKENS or (config.output_len is None and num_answer < _LEAST_TOKENS)
    if is_short or num_prompt > _MOST_PROMPT_TOKENS or num_prompt + num_answer > _MOST_TOKENS:
        return None
    return Turn(content=said[0], max_tokens=num_answer, num_tokens=num_prompt)


def _sayings(entry: Any) -> Iterator[str]:
    turns = entry.get("conversations", entry.get("messages")) if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise _EntryError("it has no list of conversations")
    for turn in turns[:2]:
        value = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if not isinstance(value, str):
            raise _EntryError("a turn has no text in value")
        yield value


def _custom_turn(line: str, config: BenchConfig, tokenizer: "Tokenizer | None") -> Turn:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise _EntryError(f"not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise _EntryError(f"a JSON {type(entry).__name__}, not an object")
    max_tokens = config.output_len or entry.get("max_tokens", entry.get("output_tokens", _DEFAULT_OUTPUT_LEN))
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise _EntryError(f"max_tokens is {max_tokens!r}, not a number of tokens")
    fields = {name: entry[name] for name in ("tools", "tool_choice") if name in entry}
    content, num_tokens = _content_of(entry, config, tokenizer)
    return Turn(content=content, max_tokens=max_tokens, num_tokens=num_tokens, fields=fields)


def _content_of(
    entry: dict[str, Any], config: BenchConfig, tokenizer: "Tokenizer | None"
) -> tuple[Content, int | None]:
    if "messages" in entry:
        messages = entry["messages"]
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages) or not messages:
            raise _EntryError("messages is not a list of messages")
        if not config.is_chat:
            raise _EntryError("messages need a chat: facet bench serve --backend openai-chat")
        return messages, None
    prompt = entry.get("prompt")
    if isinstance(prompt, str) and prompt:
        return prompt, _count(prompt, tokenizer)
    if isinstance(prompt, list) and prompt and all(type(token) is int and 0 <= token < 2**31 for token in prompt):
        if config.is_chat:
            raise _EntryError("a chat takes no token ids")
        return np.array(prompt, dtype=np.int32), len(prompt)
    raise _EntryError("it has neither a prompt (text or token ids) nor messages")


def _count(text: str, tokenizer: "Tokenizer | None") -> int:
    if tokenizer is None:
        return -(-len(text) // _CHARACTERS_PER_TOKEN)
    return len(tokenizer.encode(text))


def _path_of(config: BenchConfig) -> Path:
    assert config.dataset_path is not None, "check_config asks for the file"
    return Path(config.dataset_path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 at byte {error.start}"
        raise ConfigError(f"The dataset {path} cannot be read: {reason}.") from None
