"""Reads a picture, sound or video into the part of a message that carries it, in OpenAI's format or in vLLM's."""

import base64
from pathlib import Path
from typing import Any

from facet.errors import ConfigError
from facet.media.signatures import PICTURE_FORMATS, SOUND_FILES, VIDEO_FILES, recognize

# What the parts of a message are called.
KINDS = {"image_url": "picture", "input_audio": "sound", "video_url": "video"}


def read_attachment(name: str) -> dict[str, Any]:
    try:
        data = Path(name).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
    found, text = recognize(data), base64.b64encode(data).decode()
    if found in PICTURE_FORMATS:
        return {"type": "image_url", "image_url": {"url": f"data:image/{found.lower()};base64,{text}"}}
    if found in SOUND_FILES:
        return {"type": "input_audio", "input_audio": {"data": text, "format": Path(name).suffix[1:] or "wav"}}
    if found in VIDEO_FILES:
        return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{text}"}}
    raise ConfigError(f"{name} is {found or 'of an unknown type'}. Attach pictures, sound or video; send text as text.")


def content_of(text: str, attached: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a message of the user. What is attached goes first, as models were trained."""
    return [*attached, {"type": "text", "text": text}] if attached else text
