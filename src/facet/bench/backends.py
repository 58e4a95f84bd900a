"""Turns a conversation into the fields of a request, for either endpoint. Sends nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from facet.bench.answers import AnswerReader, ChatReader, CompletionReader
from facet.bench.dialogue import Turn

# What every tool in a benchmark answers: that it was called, and nothing that takes thought.
TOOL_RESULT = '{"status": "done"}'


@dataclass(frozen=True, slots=True)
class Said:
    """A turn and its answer."""

    turn: Turn
    answer: AnswerReader
    num_tokens: int  # of the answer


class Backend(Protocol):
    endpoint: str

    def fields(self, past: Sequence[Said], turn: Turn) -> dict[str, Any]: ...

    def reader(self) -> AnswerReader: ...


class CompletionsBackend:
    """Prompts of token ids or of text, preceded by the whole history, including answers."""

    endpoint = "/v1/completions"

    def fields(self, past: Sequence[Said], turn: Turn) -> dict[str, Any]:
        if isinstance(turn.content, np.ndarray):
            parts: list[Any] = []
            for said in past:
                parts += [said.turn.content, _answer_ids(said)]
            prompt: Any = np.concatenate([*parts, turn.content]).tolist()
        else:
            prompt = "".join(f"{said.turn.content}{said.answer.text}" for said in past) + str(turn.content)
        return {"prompt": prompt, "max_tokens": turn.max_tokens}

    def reader(self) -> AnswerReader:
        return CompletionReader()


class ChatBackend:
    """Messages, with text from the user. Tool calls get a result before the user's next message."""

    endpoint = "/v1/chat/completions"

    def fields(self, past: Sequence[Said], turn: Turn) -> dict[str, Any]:
        messages: list[Any] = []
        for said in past:
            messages += [*_messages_of(said.turn), *_answer_messages(said.answer)]
        # Servers from before the newer name know max_tokens, and those of today know both.
        return {"messages": [*messages, *_messages_of(turn)], "max_tokens": turn.max_tokens}

    def reader(self) -> AnswerReader:
        return ChatReader()


def _answer_ids(said: Said) -> "np.ndarray[Any, np.dtype[np.int32]]":
    if said.answer.token_ids:
        return np.array(said.answer.token_ids, dtype=np.int32)
    # The server keeps its token ids to itself: others in their place keep the length right. A prefix is then shared
    # up to the end of the prompt, not of the answer.
    return np.resize(np.asarray(said.turn.content), said.num_tokens)


def _messages_of(turn: Turn) -> Sequence[Any]:
    if isinstance(turn.content, str):
        return [{"role": "user", "content": turn.content}]
    assert not isinstance(turn.content, np.ndarray), "datasets make no token ids for chats"
    return turn.content


def _answer_messages(answer: AnswerReader) -> list[Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if not answer.calls:
        return [message]
    message["tool_calls"] = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in answer.calls
    ]
    results = [{"role": "tool", "tool_call_id": call_id, "content": TOOL_RESULT} for call_id, _, _ in answer.calls]
    return [message, *results]
