"""Reads the parts of messages that are pictures, sound or video, as OpenAI's, vLLM's and transformers' clients write
them, and checks that the model reads that kind and how many there are.

What a part holds is not fetched here, only found: `media.sources` does that.
"""

import base64
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast, get_args

from facet.errors import RequestError
from facet.media.data_url import split_data_url
from facet.media.options import Detail, MediaOptions, read_named_options
from facet.media.signatures import PICTURE_FORMATS, SOUND_FILES, VIDEO_FILES, recognize
from facet.media_span import MediaKind

# The types of parts, and where in such a part its content is. A part may also hold it under its type's first word.
_TYPES: Mapping[str, tuple[MediaKind | None, tuple[str, ...]]] = {
    "image": ("image", ("image", "url", "path")),
    "image_url": ("image", ("image_url",)),
    "input_image": ("image", ("image_url",)),
    "image_pil": ("image", ("image_pil",)),
    "audio": ("audio", ("audio", "url", "path")),
    "audio_url": ("audio", ("audio_url",)),
    "input_audio": ("audio", ("input_audio",)),
    "video": ("video", ("video", "url", "path")),
    "video_url": ("video", ("video_url",)),
    "input_video": ("video", ("video_url",)),
    "file": (None, ("file",)),
    "input_file": (None, ("file_data", "file_url")),
}
MEDIA_TYPES = frozenset(_TYPES)
_PLURAL: Mapping[MediaKind | None, str] = {"image": "images", "audio": "audio", "video": "video", None: "files"}
_HEAD_CHARACTERS = 2048  # of base64: enough to tell what kind of file it is
_NOT_BASE64 = re.compile("[^A-Za-z0-9+/]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPart:
    """A picture, sound or video in a message, and where its content is: exactly one of `url`, `data` and `value`."""

    kind: MediaKind
    where: str  # as in messages[0].content[1]
    url: str | None = None
    data: str | None = None  # base64
    value: object = None  # from Python: a Pillow image, an array, a path, the bytes of a file
    options: MediaOptions = field(default_factory=MediaOptions)

    @property
    def is_on_the_web(self) -> bool:
        return self.url is not None and self.url[:6].lower().startswith(("http:", "https:"))

    def with_options(self, options: MediaOptions) -> "MediaPart":
        return replace(self, options=options)


class PlacedPart(dict[str, Any]):
    """A part in the form of chat completions that was sent in another one, with its place there, for error messages."""

    def __init__(self, part: Mapping[str, Any], where: str, content: str = "") -> None:
        """`content`: what the content is called there, with the dot before it."""
        super().__init__(part)
        self.where = where
        self.content_where = where + content


@dataclass(slots=True, kw_only=True)
class MediaParts:
    """Collects the parts of one conversation, in their order."""

    kinds: tuple[MediaKind, ...] = ()  # what the model reads besides text
    most: Mapping[MediaKind, int] = field(default_factory=dict)  # of a kind in one prompt; no limit where not named
    takes_values: bool = False  # whether content may be a Python value or a path: only where the caller is a program
    found: list[MediaPart] = field(default_factory=list)

    def take(self, part: Mapping[Any, Any], where: str) -> MediaKind:
        """Adds a part; its kind is what the template is told."""
        kind, names = _TYPES[part["type"]]
        where = part.where if isinstance(part, PlacedPart) else where
        if not self.kinds:
            _refuse(where, f"is of type {part['type']!r}, but this server reads text only, no {_PLURAL[kind]}")
        taken = self._read(part, kind, names, where)
        if taken.kind not in self.kinds:
            *others, last = ("text", *(_PLURAL[known] for known in self.kinds))
            known = f"{', '.join(others)} and {last}"
            _refuse(where, f"is of type {part['type']!r}, but this model reads {known}, no {_PLURAL[taken.kind]}")
        self.found.append(taken)
        most = self.most.get(taken.kind)
        count = sum(other.kind == taken.kind for other in self.found)
        if most is not None and count > most:
            _refuse(
                where,
                f"is one too many: a prompt may hold {most} of kind {taken.kind} (--limit-mm-per-prompt). "
                "Leave some out",
            )
        return taken.kind

    def take_value(self, kind: str, value: object, where: str) -> None:
        """Adds an item that belongs to no message: one of the values beside a prompt."""
        if kind not in get_args(MediaKind):
            _refuse(where, f"is of an unknown kind. Known: {', '.join(get_args(MediaKind))}")
        self.take({"type": kind, kind: value}, where)

    def _read(self, part: Mapping[Any, Any], kind: MediaKind | None, names: tuple[str, ...], where: str) -> MediaPart:
        name = next((name for name in names if part.get(name) is not None), None)
        if name is None:
            _refuse(where, f"has no {' or '.join(names)}")
        content = part[name]
        place = f"{where}.{name}"
        settings: Mapping[Any, Any] = {**part, **content} if isinstance(content, Mapping) else part
        if isinstance(content, Mapping):
            if name == "file" and content.get("file_id") is not None:
                _refuse(place, "has a file_id, but no files are kept here. Send file_data")
            inner = next(
                (key for key in ("url", "data", "file_data", "file_url") if content.get(key) is not None), None
            )
            if inner is None:
                _refuse(place, "has no url" if name.endswith("url") else "has no data")
            content, place, name = content[inner], f"{place}.{inner}", inner
        if isinstance(part, PlacedPart):
            place = part.content_where
        if not isinstance(content, str):
            if not self.takes_values or kind is None:
                _refuse(place, f"must be a string, not {type(content).__name__}")
            return MediaPart(kind=kind, where=place, value=content, options=_options(settings, kind, where))
        is_data = name in ("data", "file_data") and not _is_data_url(content)
        found = kind or _kind_of_file(content, is_data, place)
        made = MediaPart(kind=found, where=place, options=_options(settings, found, where))
        if is_data:
            return replace(made, data=content)
        if self.takes_values and (path := _as_path(content)) is not None:
            return replace(made, value=path)
        return replace(made, url=content)


def _kind_of_file(content: str, is_data: bool, where: str) -> MediaKind:
    """The kind of a file by its first bytes: a client says only that it is a file."""
    if not is_data and not _is_data_url(content):
        _refuse(where, "is a URL. Send what it is as image_url, audio_url or video_url")
    head = _first_bytes(content, is_data)
    if not head:
        _refuse(where, "is not valid base64" if content.strip() else "is empty. Send the file's contents")
    found = recognize(head)
    if found in PICTURE_FORMATS:
        return "image"
    if found in SOUND_FILES:
        return "audio"
    if found in VIDEO_FILES:
        return "video"
    _refuse(where, f"is {found or 'of an unknown type'}. Files may be pictures, sound or video; send text as text")


def _first_bytes(content: str, is_data: bool) -> bytes:
    """The first bytes of base64 or of a data URL, which may be broken further on. Empty: there are none."""
    is_base64, body = (True, content) if is_data else split_data_url(content) or (False, "")
    start = body[:_HEAD_CHARACTERS]
    if not is_base64:
        return urllib.parse.unquote_to_bytes(start)
    if not is_data:
        start = urllib.parse.unquote(start)
    letters = _NOT_BASE64.sub("", start)  # line ends may stand anywhere
    return base64.b64decode(letters[: len(letters) // 4 * 4])


def _as_path(text: str) -> str | None:
    """The text as a path. None: it is a URL of something that is no file here."""
    if text[:8].lower() == "file:///":
        return urllib.parse.unquote(text[7:])
    return None if "://" in text[:20] or _is_data_url(text) else text


def _is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def _options(part: Mapping[Any, Any], kind: MediaKind, where: str) -> MediaOptions:
    detail = part.get("detail")
    if detail not in (None, "original", *get_args(Detail)):
        _refuse(f"{where}.detail", "must be low, auto or high")
    # "original", in newer clients: as much as the model can take.
    asked = cast(Detail | None, "high" if detail == "original" else detail)
    return replace(read_named_options(part, where, "messages"), detail=asked if kind == "image" else None)


def _refuse(where: str, fault: str) -> NoReturn:
    raise RequestError(f"{where} {fault}.", field="messages")
