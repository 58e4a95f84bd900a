"""Builds the messages of a conversation from the smaller items in which other APIs send it.

The result is in the form of chat completions, which the room `chat` checks and renders. What the model thought, said
and called in one turn comes as separate items and becomes one message.
"""

from typing import Any

from facet.chat.media_parts import PlacedPart


class Conversation:
    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        """`messages` came before."""
        self.messages: list[dict[str, Any]] = messages or []

    def say(self, role: str, content: str | list[dict[str, Any]]) -> None:
        """Adds a message of anyone but the model."""
        self.messages.append({"role": role, "content": content})

    def open_turn(self) -> dict[str, Any]:
        """Begins the model's turn, even if it had the last word."""
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        self.messages.append(turn)
        return turn

    def think(self, text: str) -> None:
        """A thought of the model. It opens a turn if the model has said or called something before."""
        turn = self._turn()
        if turn["content"] or "tool_calls" in turn:
            turn = self.open_turn()
        turn["reasoning"] = f"{turn['reasoning']}\n{text}" if "reasoning" in turn else text

    def reply(self, text: str) -> None:
        """Adds words of the model. After a call they open a turn."""
        turn = self._turn()
        if "tool_calls" in turn:
            turn = self.open_turn()
        turn["content"] += text

    def call(self, call_id: str, name: str, arguments: object) -> None:
        """Adds a call by the model. Arguments are an object or its JSON."""
        function = {"name": name, "arguments": arguments}
        self._turn().setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def result(self, call_id: str | None, content: str | list[dict[str, Any]], name: str | None = None) -> None:
        """Adds what a tool returned."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": content})

    def _turn(self) -> dict[str, Any]:
        """The turn of the model that is open."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]
        return self.open_turn()


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# Parts that are no text. `where` is the place of a part in the request, `name` what its content is called in there.


def image_at(url: str, where: str, name: str, detail: object = None) -> dict[str, Any]:
    """A picture at an address, which may be a data URL."""
    return PlacedPart({"type": "image_url", "image_url": {"url": url, "detail": detail}}, where, name)


def image_of(base64: str, where: str, name: str) -> dict[str, Any]:
    return PlacedPart({"type": "image", "image": {"data": base64}}, where, name)


def sound_of(base64: str, where: str, name: str) -> dict[str, Any]:
    return PlacedPart({"type": "input_audio", "input_audio": {"data": base64}}, where, name)


def file_of(data: str, where: str, name: str = "") -> dict[str, Any]:
    """A picture, a sound or a video, as its own bytes tell: base64 or a data URL."""
    return PlacedPart({"type": "file", "file": {"file_data": data}}, where, name)
