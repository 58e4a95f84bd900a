"""The state of a chat session: messages and settings. Sends and prints nothing."""

from dataclasses import dataclass, field
from typing import Any

from facet.chat.reply import ToolCall
from facet.cli.answers import ChatAnswer
from facet.cli.attachments import content_of
from facet.errors import ConfigError, RequestError
from facet.sampling_params import SamplingParams

# What /set takes, and how its value is read.
SETTINGS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "thinking_token_budget": int,
    "seed": int,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
}


@dataclass(slots=True)
class Conversation:
    model: str
    system: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinks: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    attached: list[dict[str, Any]] = field(default_factory=list)  # what goes with the next message

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"model": self.model, "messages": [*opening, *self.messages], **self.settings}
        if self.tools:
            body["tools"] = self.tools
        if self.thinks:
            body["chat_template_kwargs"] = {"enable_thinking": True}
        return body

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": content_of(text, self.attached)})
        self.attached = []

    def hear(self, answer: ChatAnswer) -> None:
        self.messages.append(answer.message())

    def give_result(self, call: ToolCall, result: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": result})

    def forget_from(self, num_messages: int) -> None:
        """Keeps only the first messages."""
        del self.messages[num_messages:]

    def set(self, name: str, text: str) -> None:
        """Sets a setting from what was typed; `default` resets it."""
        if name not in SETTINGS:
            raise ConfigError(f"There is no setting {name!r}. There are: {', '.join(SETTINGS)}.")
        if text == "default":
            self.settings.pop(name, None)
            return
        kind = SETTINGS[name]
        try:
            value: Any = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{name} must be {what}, not {text!r}; `default` resets a setting.") from None
        try:
            SamplingParams(**{name: value})
        except RequestError as error:
            raise ConfigError(str(error)) from None
        self.settings[name] = value
