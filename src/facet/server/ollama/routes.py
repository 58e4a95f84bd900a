"""/api/chat, /api/generate, /api/tags, /api/ps, /api/show and /api/version."""

import hashlib

from starlette.requests import Request
from starlette.responses import Response

from facet.chat.formats import ReplyMarkers, find_thought
from facet.server.body import BodyDecoder
from facet.server.exchange import carry_out
from facet.server.frontend import Frontend, json_response, request_id_of
from facet.server.ollama.answers import OllamaExchange, Said, as_text, make_line
from facet.server.ollama.question import chat_question, generate_question
from facet.server.ollama.wire import (
    Details,
    GenerateRequest,
    ModelDescription,
    OllamaChatRequest,
    RunningList,
    RunningModel,
    ShowRequest,
    Tag,
    TagList,
    Version,
)
from facet.server.served_model import ServedModel
from facet.version import __version__

# A model is served as long as its server runs. Clients show a time as far away as this as "forever".
_NEVER = "2300-01-01T00:00:00Z"


class OllamaEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._chat = BodyDecoder(OllamaChatRequest)
        self._generate = BodyDecoder(GenerateRequest)
        self._show = BodyDecoder(ShowRequest)
        model = frontend.model
        self._details = Details("gguf" if model.root.endswith(".gguf") else "safetensors")
        self._started_at = as_text(model.created)

    async def chat(self, request: Request) -> Response:
        frontend, response_id = self._frontend, f"ollama-{request_id_of(request)}"
        fields: OllamaChatRequest
        async with frontend.reading(request, self._chat) as fields:
            model = self._model_named(fields.model)
            if not fields.messages:
                return _loaded(model, is_chat=True)
            question = chat_question(fields, model.asked)
            frontend.check_tool_choice(question)
            prepared = await frontend.prepare(question, model, response_id)
        exchange = OllamaExchange(response_id, prepared, model, is_chat=True)
        stream = fields.stream is not False
        return await carry_out(exchange, prepared.requests, frontend, request, n=1, stream=stream)

    async def generate(self, request: Request) -> Response:
        frontend, response_id = self._frontend, f"ollama-{request_id_of(request)}"
        fields: GenerateRequest
        async with frontend.reading(request, self._generate) as fields:
            model = self._model_named(fields.model)
            if not fields.prompt:
                return _loaded(model, is_chat=False)
            prepared = await frontend.prepare(generate_question(fields, model.asked), model, response_id)
        exchange = OllamaExchange(response_id, prepared, model, is_chat=False)
        stream = fields.stream is not False
        return await carry_out(exchange, prepared.requests, frontend, request, n=1, stream=stream)

    async def tags(self, request: Request) -> Response:
        size = self._frontend.bridge.info.num_weight_bytes
        return json_response(
            TagList(
                [
                    Tag(name, name, self._started_at, _digest(name), self._details, size)
                    for name in self._frontend.model_names
                ]
            )
        )

    async def running(self, request: Request) -> Response:
        """Lists the same models, unless they sleep."""
        model, bridge = self._frontend.model, self._frontend.bridge
        info, names = bridge.info, () if bridge.sleep_level else self._frontend.model_names
        return json_response(
            RunningList(
                [
                    RunningModel(
                        name=name,
                        model=name,
                        size=info.num_weight_bytes + info.cache.num_bytes,
                        digest=_digest(name),
                        details=self._details,
                        expires_at=_NEVER,
                        size_vram=info.num_gpu_bytes,
                        context_length=model.max_model_len,
                    )
                    for name in names
                ]
            )
        )

    async def show(self, request: Request) -> Response:
        fields: ShowRequest
        async with self._frontend.reading(request, self._show) as fields:
            asked = self._model_named(fields.model or fields.name).asked
        capabilities = ["completion"]
        if asked.template is not None:
            tokenizer = asked.require_tokenizer()
            capabilities += ["tools"] * (asked.template.shows_tools or ReplyMarkers.find(tokenizer) is None)
            capabilities += ["thinking"] * (find_thought(tokenizer, ()) is not None)
        if "image" in asked.media.kinds:
            capabilities.append("vision")
        info: dict[str, str | int] = {"general.architecture": "gemma", "gemma.context_length": asked.max_model_len}
        return json_response(ModelDescription(self._details, info, capabilities, self._started_at))

    async def version(self, request: Request) -> Response:
        return json_response(Version(__version__))

    def _model_named(self, asked: str | None) -> ServedModel:
        """The model of a name, to which clients add a tag where it has none."""
        if asked is not None and asked not in self._frontend.model_names:
            asked = asked.removesuffix(":latest")
        return self._frontend.model_named(asked)


def _loaded(model: ServedModel, *, is_chat: bool) -> Response:
    """The answer to a request without a prompt, which asks that the model be loaded."""
    return json_response(make_line(model.name, Said(), is_chat=is_chat, done_reason="load"))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
