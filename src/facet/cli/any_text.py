"""Text between the command and its streams, whatever their encoding."""

import codecs
import io
import json
import re
import sys

from facet.errors import ConfigError

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def take_any_text() -> None:
    """Output shows "?" for what its encoding lacks; of input, bytes that are no text are kept for `utf8_text`."""
    if isinstance(sys.stdout, io.TextIOWrapper) and (sys.stdout.errors == "strict" or not _is_utf8(sys.stdout)):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors == "strict":
        sys.stdin.reconfigure(errors="surrogateescape")


def _is_utf8(stream: io.TextIOWrapper) -> bool:
    return codecs.lookup(stream.encoding).name == "utf-8"


def utf8_text(text: str, what: str) -> str:
    """Text from the command line or standard input. `what`: in words, at the beginning of a message."""
    try:
        return text.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        raise ConfigError(f"{what} is not UTF-8 text. Convert it, as with iconv -f latin1 -t utf-8.") from None


def printable_json(text: str) -> str:
    """JSON that standard output can show: with escapes where its encoding lacks a character, instead of a "?"."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    return text
