"""Reads the body of a request within limits and decodes it; errors name the wrong field."""

import asyncio
import logging
import re
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from facet.server.errors import HttpError

logger = logging.getLogger(__name__)

Wire = TypeVar("Wire", bound=msgspec.Struct)

_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")


async def read_body(request: Request, *, max_bytes: int, timeout: float) -> bytearray:
    """Reads all of it. A body that is too large is refused as early as its announced length or its size shows it."""
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() not in ("", "identity"):
        raise HttpError(
            400, f"The body is compressed (Content-Encoding: {coding}), which is not supported. Send it uncompressed."
        )
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise HttpError(408, f"Only {len(body)} bytes of the body arrived within {timeout:g} seconds.") from None
    except ClientDisconnect:
        raise HttpError(400, f"The connection was closed after {len(body)} bytes of the body.") from None
    return body


class Decoder(Protocol):
    """Makes what an endpoint works with of a body, or refuses it."""

    def decode(self, body: bytearray) -> object: ...


class BodyDecoder:
    """Decodes bytes into one wire type. Unknown fields are ignored, as in vLLM; --verbose names them.

    Forms and small scripts send numbers and truth values as texts, and whole numbers as 8.0. They mean what they say.
    """

    def __init__(self, wire_type: type[Wire]) -> None:
        self._strict: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(wire_type)
        self._lenient: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(wire_type, strict=False)
        self._known = frozenset(wire_type.__struct_encode_fields__)

    def decode(self, body: bytes | bytearray) -> msgspec.Struct:
        try:
            decoded = self._decode(body)
            if logger.isEnabledFor(logging.DEBUG) and (unknown := self._unknown_fields(body)):
                logger.debug("Unknown fields were ignored: %s", ", ".join(map(repr, unknown)))
            return decoded
        except msgspec.ValidationError as error:
            raise _explain(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HttpError(400, f"The body is not valid JSON: {error}.") from None
        except RecursionError:
            raise HttpError(400, "The body is nested too deeply to be read.") from None

    def _decode(self, body: bytes | bytearray) -> msgspec.Struct:
        try:
            return self._strict.decode(body)
        except msgspec.ValidationError:
            try:
                return self._lenient.decode(body)
            except msgspec.ValidationError:
                pass
            raise  # with the types as they are documented

    def _unknown_fields(self, body: bytes | bytearray) -> list[str]:
        return sorted(set(msgspec.json.decode(body, type=dict[str, msgspec.Raw])) - self._known)


def convert(value: object, wire_type: Any, where: str = "", *, strict: bool = True) -> Any:
    """A value that was decoded already, as a type of its own; errors name its place in the body.

    `strict` False: numbers and truth values may be texts.
    """
    try:
        return msgspec.convert(value, wire_type, strict=strict)
    except msgspec.ValidationError as error:
        raise _explain(str(error), where) from None


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(413, f"The body is larger than {max_bytes} bytes, the limit of this server (--max-request-bytes).")


def _explain(message: str, where: str = "") -> HttpError:
    """An error of msgspec, such as "Expected `int`, got `str` - at `$.max_tokens`", in our format."""
    found = _PATH.search(message)
    path, is_value, _ = (found["path"] if found else "").partition("[...]")  # the key is not said
    path = ".".join(filter(None, (where, path)))
    words = message[: found.start()] if found else message
    words = words.replace("`", "")
    if missing := re.search(r"missing required field (\w+)", words):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return HttpError(400, f"{path} is required.", param=path)
    if not path:
        return HttpError(400, f"The body must be a JSON object: {words[0].lower()}{words[1:]}.")
    place = f"a value in {path}" if is_value else path
    return HttpError(400, f"{place}: {words[0].lower()}{words[1:]}.", param=path)
