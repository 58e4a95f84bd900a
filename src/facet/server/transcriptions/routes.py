"""/v1/audio/transcriptions and /v1/audio/translations: the words of a sound, as they were said or translated.

A sound becomes conversations of one question, one for each clip of it, which are answered like any other.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from facet.chat.media_parts import PlacedPart
from facet.errors import RequestError
from facet.prepared_media import PreparedMedia
from facet.prompts import ChatQuestion, PreparedQuestion, prepare
from facet.prompts.asked_model import AskedModel
from facet.prompts.media_reading import CLIP_SECONDS
from facet.server.dialect import renaming
from facet.server.errors import HttpError
from facet.server.exchange import CACHED_TOKENS_HEADER, carry_out
from facet.server.frontend import Frontend, response_id_of
from facet.server.transcriptions import instructions
from facet.server.transcriptions.answers import TranscriptionExchange
from facet.server.transcriptions.languages import language_name
from facet.server.transcriptions.wire import SoundForm, SoundFormDecoder, TranscriptionRequest

Task = Literal["transcribe", "translate"]

# For a clip: several times what can be said in that time, so that only an answer without end is cut.
_MAX_TOKENS = 2048
# What is called otherwise in the conversation that a sound becomes.
_NAMES = {"messages": "file", "max_tokens": "max_completion_tokens"}
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    "seed",
)


class TranscriptionEndpoint:
    def __init__(self, frontend: Frontend, task: Task) -> None:
        self._frontend = frontend
        self._task = task

    async def __call__(self, request: Request) -> Response:
        frontend = self._frontend
        form: SoundForm
        with renaming(_NAMES):
            async with frontend.reading(request, SoundFormDecoder(request.headers.get("content-type", ""))) as form:
                fields = form.fields
                model = frontend.model_named(fields.model)
                self._check_hears()
                source, target = self._languages(fields)
                question = self._question(fields, source, target)
                response_id = response_id_of("trsc", None, request)
                clips = await self._read(form.sound)
                prepared = await self._prepare(question, model.asked, clips, response_id)
        exchange = TranscriptionExchange(
            response_id,
            [(one, clip.timestamp or 0.0) for one, clip in zip(prepared, clips, strict=True)],
            model,
            task=self._task,
            language=target or source,
            mark=None if target is None else instructions.translation_mark(target),
            is_verbose=fields.response_format == "verbose_json",
        )
        requests = [one.requests[0] for one in prepared]
        with renaming(_NAMES):
            response = await carry_out(exchange, requests, frontend, request, n=1, stream=fields.stream)
        if fields.response_format != "text" or fields.stream:
            return response
        cached = {CACHED_TOKENS_HEADER: response.headers[CACHED_TOKENS_HEADER]}
        return PlainTextResponse(f"{exchange.text}\n", headers=cached)

    def _check_hears(self) -> None:
        model = self._frontend.model
        if model.asked.media.sounds is None:
            raise HttpError(
                400,
                f"{model.name} does not hear. Gemma 4 E2B, E4B and 12B and Gemma 3n do, where their towers for sound "
                "are loaded.",
                param="model",
            )

    def _languages(self, fields: TranscriptionRequest) -> tuple[str | None, str | None]:
        """Names of the language that is spoken, if it is known, and of that to translate into, if any."""
        source = None if fields.language is None else language_name(fields.language, "language")
        if self._task == "translate":
            return source, language_name(fields.to_language or "en", "to_language")
        if fields.to_language is not None:
            raise RequestError(
                "to_language is for translations. Leave it out, or send this to /v1/audio/translations.",
                field="to_language",
            )
        return source, None

    def _question(self, fields: TranscriptionRequest, source: str | None, target: str | None) -> ChatQuestion:
        """The question without the sound: in its place is a part that says where it was sent."""
        given: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(fields, name)) is not None}
        if fields.max_completion_tokens is not None:
            given["max_tokens"] = fields.max_completion_tokens
        instruction = instructions.transcribe(source) if target is None else instructions.translate(source, target)
        text = instructions.with_context(instruction, fields.prompt, fields.keywords)
        sound = PlacedPart({"type": "input_audio", "input_audio": {"data": ""}}, "file")
        return ChatQuestion(
            messages=[{"role": "user", "content": [{"type": "text", "text": text}, sound]}],
            sampling=self._frontend.model.asked.sampling({"temperature": 0.0, **given}, max_tokens=_MAX_TOKENS),
            is_max_tokens_default=fields.max_completion_tokens is None,
            chat_template_kwargs={"enable_thinking": False},
        )

    async def _read(self, sound: bytes) -> Sequence[PreparedMedia]:
        bridge = self._frontend.bridge
        bridge.check_room(1)
        clips = await self._frontend.media.read_sound(sound, "file")
        if len(clips) > bridge.max_pending:
            raise HttpError(
                400,
                f"file is as long as {len(clips)} requests of at most {CLIP_SECONDS:g} seconds, but this server takes "
                f"at most {bridge.max_pending} at a time. Send a part of it.",
                param="file",
            )
        bridge.check_room(len(clips))
        return clips

    async def _prepare(
        self, question: ChatQuestion, model: AskedModel, clips: Sequence[PreparedMedia], response_id: str
    ) -> list[PreparedQuestion]:
        frontend = self._frontend
        request_ids = frontend.bridge.new_ids(response_id, len(clips))
        return await frontend.in_thread(partial(_prepare_all, question, model, request_ids, clips))


def _prepare_all(
    question: ChatQuestion, model: AskedModel, request_ids: Sequence[str], clips: Sequence[PreparedMedia]
) -> list[PreparedQuestion]:
    """Prepares the same question about each clip. In a thread."""
    return [
        prepare(question, model, [request_id], [(clip,)]) for request_id, clip in zip(request_ids, clips, strict=True)
    ]
