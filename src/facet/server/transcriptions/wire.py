"""Wire types of /v1/audio/transcriptions and /v1/audio/translations, and how a form becomes one."""

import logging

import msgspec

from facet.errors import RequestError
from facet.media.limits import MediaLimits
from facet.server.body import convert
from facet.server.errors import HttpError
from facet.server.protocol.sampling_fields import Int, refuse_unsupported
from facet.server.transcriptions.form import Form, read_form

logger = logging.getLogger(__name__)

_MAX_BYTES = MediaLimits().max_bytes  # of the file
_MAX_OTHER_BYTES = 1 << 20  # of all else in a form
FORMATS = ("json", "text", "verbose_json")
_UNSUPPORTED = {
    "timestamp_granularities": "Gemma models give no times. Leave it out.",
    "include": "Leave it out.",
    "known_speaker_names": "Gemma models do not tell speakers apart. Leave it out.",
    "known_speaker_references": "Gemma models do not tell speakers apart. Leave it out.",
    "languages": "Send language with one of them, or leave it out.",
    "vllm_xargs": "Leave it out.",
}


class TranscriptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields beside the file."""

    model: str | None = None
    language: str | None = None
    to_language: str | None = None  # vLLM's, of translations
    prompt: str = ""
    keywords: list[str] = []
    response_format: str = "json"
    stream: bool = False
    chunking_strategy: str | list[str] = "auto"

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int | None = None
    max_completion_tokens: Int | None = None

    # Known but not supported: refused by name.
    timestamp_granularities: list[str] = []
    include: list[str] = []
    known_speaker_names: list[str] = []
    known_speaker_references: list[str] = []
    languages: list[str] = []
    vllm_xargs: str | None = None


class InputDetails(msgspec.Struct):
    audio_tokens: int
    text_tokens: int


class TokenUsage(msgspec.Struct, tag_field="type", tag="tokens"):
    input_tokens: int
    input_token_details: InputDetails
    output_tokens: int
    total_tokens: int


class DurationUsage(msgspec.Struct, tag_field="type", tag="duration"):
    seconds: int


class Transcription(msgspec.Struct):
    text: str
    usage: TokenUsage


class VerboseTranscription(msgspec.Struct):
    task: str
    language: str
    duration: float
    text: str
    usage: DurationUsage


class TextDelta(msgspec.Struct, tag_field="type", tag="transcript.text.delta"):
    delta: str


class TextDone(msgspec.Struct, tag_field="type", tag="transcript.text.done"):
    text: str
    usage: TokenUsage


class SoundForm(msgspec.Struct, frozen=True):
    """A request, with the file it is about."""

    fields: TranscriptionRequest
    sound: bytes


class SoundFormDecoder:
    """Reads forms with a sound. Empty fields are as good as none: forms have them for what is not set. Unknown ones are
    ignored, as in JSON."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type

    def decode(self, body: bytearray) -> SoundForm:
        if len(body) > _MAX_BYTES + _MAX_OTHER_BYTES:
            raise _too_large(len(body))  # without a look into it
        form = read_form(body, self._content_type)
        fields: TranscriptionRequest = convert(_values(form), TranscriptionRequest, strict=False)
        refuse_unsupported(fields, _UNSUPPORTED)
        if fields.response_format not in FORMATS:
            raise RequestError(
                f"response_format is {fields.response_format[:40]!r}, but must be one of {', '.join(FORMATS)}: Gemma "
                "models give no times and do not tell speakers apart.",
                field="response_format",
            )
        if fields.chunking_strategy != "auto":
            raise RequestError(
                "chunking_strategy must be auto: long sound is cut in its pauses. Leave it out.",
                field="chunking_strategy",
            )
        return SoundForm(fields, _sound(form))


def _values(form: Form) -> dict[str, str | list[str]]:
    """The values of a form by name, without the brackets that clients write behind names of lists."""
    texts: dict[str, list[str]] = {}
    for name, values in form.fields.items():
        texts.setdefault(name.partition("[")[0], []).extend(filter(None, values))
    if logger.isEnabledFor(logging.DEBUG) and (unknown := sorted(texts.keys() - _KNOWN)):
        logger.debug("Unknown fields were ignored: %s", ", ".join(map(repr, unknown)))
    found: dict[str, str | list[str]] = {}
    for name in TranscriptionRequest.__struct_encode_fields__:
        values = texts.get(name, [])
        if name in form.files:
            raise HttpError(400, f"{name} is a file, but must be a text. Leave out its filename.", param=name)
        if isinstance(getattr(_NOTHING, name), list):
            found[name] = values
        elif len(values) > 1:
            raise HttpError(400, f"{name} was sent {len(values)} times. Send it once.", param=name)
        elif values:
            found[name] = values[0]
    if any(name.startswith("chunking_strategy[") for name in form.fields):
        found["chunking_strategy"] = texts["chunking_strategy"]  # an object, written field by field
    return found


_NOTHING = TranscriptionRequest()
_KNOWN = frozenset((*TranscriptionRequest.__struct_encode_fields__, "file"))


def _sound(form: Form) -> bytes:
    if "file" in form.fields:
        raise HttpError(400, "file is a text, but must be a file. Send it with a filename.", param="file")
    others = [name for name in form.files if name != "file"]
    if others:
        raise HttpError(400, f"{others[0][:40]!r} is a file that is not expected. Send one, named file.", param="file")
    sounds = form.files.get("file", [])
    if len(sounds) != 1:
        raise HttpError(400, f"The form has {len(sounds)} files named file, but must have one.", param="file")
    if len(sounds[0]) > _MAX_BYTES:
        raise _too_large(len(sounds[0]))
    return sounds[0]


def _too_large(num_bytes: int) -> HttpError:
    message = (
        f"file has {num_bytes:,} bytes, but at most {_MAX_BYTES:,} are allowed. Compress it, or send a part of it."
    )
    return HttpError(413, message, param="file")
