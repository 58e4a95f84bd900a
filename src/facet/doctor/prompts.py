"""Finds the prompts that the quality of a model is measured on: the user's own, or a built-in set."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from facet.chat import ChatTemplate, normalize_messages, template_variables
from facet.doctor.patient import Patient
from facet.errors import ConfigError, RequestError
from facet.tokens import Tokenizer

# Facts, reasoning, code, numbers, languages, formats: what quantizing harms differs between them.
BUILT_IN = (
    "What is the capital of Australia, and why is it not Sydney?",
    "Explain in three sentences how a refrigerator keeps food cold.",
    "A train leaves at 14:35 and arrives at 17:10. How long is the journey, in minutes? Show your steps.",
    "Write a Python function that returns the n-th Fibonacci number without recursion.",
    "What does this code print? for i in range(3): print(i * i, end=' ')",
    "Translate into German and into Spanish: The library closes an hour earlier on Sundays.",
    'Return a JSON object with the fields "name", "age" and "languages" for an invented person.',
    "List five birds that cannot fly, one per line, each with the continent it lives on.",
    "Summarise: The mill stood by the river for two hundred years. It ground corn until the war, then wool was washed "
    "in it, and at last it was left to the swallows, who do not mind who owns a roof.",
    "Is 221 a prime number? Answer yes or no first, then give the reason.",
    "Rewrite politely: Your report is late again and full of mistakes.",
    "Who wrote Middlemarch, in which year was it published, and what is it about?",
)


def read_prompts(patient: Patient) -> list[tuple[int, ...]]:
    """Token ids. A model with a chat template gets each prompt as a user's message; one without a tokenizer gets
    random tokens."""
    path = patient.config.prompts
    if not (patient.folder / "tokenizer.json").is_file():
        if path is not None:
            raise ConfigError(f"--prompts {path}: the model's folder has no tokenizer.json to read text with.")
        return [request.prompt_token_ids for request in patient.requests[: len(BUILT_IN)]]
    tokenizer = Tokenizer.from_folder(patient.folder)
    template = ChatTemplate.from_folder(patient.folder, tokenizer)
    conversations = [_user(text) for text in BUILT_IN] if path is None else _read_file(Path(path))
    return [_encode(messages, tokenizer, template) for messages in conversations]


def _read_file(path: Path) -> list[list[Any]]:
    """A prompt per line; in a .jsonl file an object per line, with `prompt` or `messages`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path} cannot be read: {error}.") from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise ConfigError(f"--prompts {path} has no line with a prompt.")
    if path.suffix != ".jsonl":
        return [_user(line) for _, line in numbered]
    return [_read_object(line, f"--prompts {path}, line {number}") for number, line in numbered]


def _read_object(line: str, where: str) -> list[Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is not JSON.") from None
    prompt, messages = (entry.get("prompt"), entry.get("messages")) if isinstance(entry, dict) else (None, None)
    if isinstance(prompt, str) and messages is None:
        return _user(prompt)
    if prompt is not None or messages is None:
        raise ConfigError(f'{where} must be an object with either "prompt", a text, or "messages".')
    try:
        return list(normalize_messages(messages))
    except RequestError as error:
        raise ConfigError(f"{where}: {error}") from None


def _user(text: str) -> list[Any]:
    return list(normalize_messages([{"role": "user", "content": text}]))


def _encode(messages: Sequence[Any], tokenizer: Tokenizer, template: ChatTemplate | None) -> tuple[int, ...]:
    if template is None:  # then only the words count
        return tuple(tokenizer.encode("\n".join(str(message["content"]) for message in messages)))
    try:
        return tuple(tokenizer.encode_prompt(template.render(messages, variables=template_variables())))
    except RequestError as error:
        raise ConfigError(f"The chat template refuses a prompt: {error}") from None
