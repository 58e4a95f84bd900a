"""/v1/responses: create, retrieve, cancel and delete; and /v1/responses/input_tokens."""

import secrets

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from facet.errors import RequestError
from facet.server.body import BodyDecoder
from facet.server.conversation import Conversation
from facet.server.errors import HttpError
from facet.server.exchange import carry_out
from facet.server.frontend import Frontend, json_response
from facet.server.middleware import key_digest_of
from facet.server.reply_parts import ReplyParts
from facet.server.responses.answers import ResponseExchange
from facet.server.responses.background import BackgroundResponses
from facet.server.responses.question import make_question, read_input
from facet.server.responses.store import ResponseStore, Stored
from facet.server.responses.wire import DeletedResponse, InputTokens, ResponseObject, ResponsesRequest


class ResponsesEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(ResponsesRequest)
        self._store = ResponseStore()
        self._background = BackgroundResponses()

    async def create(self, request: Request) -> Response:
        frontend, owner = self._frontend, key_digest_of(request)
        fields: ResponsesRequest
        async with frontend.reading(request, self._decoder) as fields:
            model = frontend.model_named(fields.model)
            _check_background(fields)
            conversation = self._conversation(fields, owner)
            question = make_question(fields, conversation.messages, model.asked)
            frontend.check_tool_choice(question)
            response_id = f"resp_{secrets.token_hex(24)}"
            prepared = await frontend.prepare(question, model, response_id)

        def keep(response: ResponseObject, parts: ReplyParts) -> None:
            if fields.store is not False:
                _add_reply(parts, conversation)
                self._store.put(owner, response, conversation.messages)

        exchange = ResponseExchange(response_id, fields, prepared, model, keep)
        if fields.background:
            begun = self._background.start(exchange, prepared.requests, frontend, request)
            self._store.put(owner, begun, conversation.messages)
            return json_response(begun)
        return await carry_out(exchange, prepared.requests, frontend, request, n=1, stream=bool(fields.stream))

    async def count(self, request: Request) -> Response:
        """Counts the tokens of the prompt that such a request would make."""
        frontend = self._frontend
        fields: ResponsesRequest
        async with frontend.reading(request, self._decoder) as fields:
            model = frontend.model_named(fields.model)
            conversation = self._conversation(fields, key_digest_of(request))
            question = make_question(fields, conversation.messages, model.asked)
            return json_response(InputTokens(await frontend.count_tokens(question)))

    async def retrieve(self, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() == "true":
            raise RequestError("stream is not supported here. Ask again until the response has ended.", field="stream")
        return _json(self._find(request))

    async def cancel(self, request: Request) -> Response:
        stored, owner = self._find(request), key_digest_of(request)
        cancelled = self._background.cancel(request.path_params["response_id"])
        if cancelled is not None:
            self._store.put(owner, cancelled, stored.messages())
            return json_response(cancelled)
        if not msgspec.json.decode(stored.response)["background"]:
            raise RequestError("Only a response with background: true can be cancelled.", field="response_id")
        return _json(stored)

    async def delete(self, request: Request) -> Response:
        response_id = request.path_params["response_id"]
        self._find(request)
        self._background.cancel(response_id)
        self._store.delete(response_id, key_digest_of(request))
        return json_response(DeletedResponse(response_id))

    def _find(self, request: Request) -> Stored:
        response_id = request.path_params["response_id"]
        stored = self._store.find(response_id, key_digest_of(request))
        if stored is None:
            raise HttpError(404, f"There is no response {response_id!r}, or no longer.", param="response_id")
        return stored

    def _conversation(self, fields: ResponsesRequest, owner: bytes) -> Conversation:
        conversation = Conversation(self._earlier(fields, owner))
        read_input(
            fields,
            conversation,
            lambda item_id: self._store.find_item(item_id, owner),
            self._frontend.model.asked.media.kinds,
        )
        return conversation

    def _earlier(self, fields: ResponsesRequest, owner: bytes) -> list[dict[str, object]]:
        """The conversation that this request continues."""
        if fields.previous_response_id is None:
            return []
        stored = self._store.find(fields.previous_response_id, owner)
        if stored is None:
            raise RequestError(
                f"previous_response_id is {fields.previous_response_id!r}, and this server has no such response, or no "
                "longer. Send the whole conversation as input.",
                field="previous_response_id",
            )
        if stored.status == "in_progress":
            raise RequestError(
                f"The response {fields.previous_response_id!r} has not ended. Wait until it has.",
                field="previous_response_id",
            )
        return stored.messages()


def _check_background(fields: ResponsesRequest) -> None:
    if not fields.background:
        return
    if fields.store is False:
        raise RequestError("A background response must be stored. Leave store out.", field="store")
    if fields.stream:
        raise RequestError("A background response cannot be streamed. Retrieve it until it has ended.", field="stream")


def _add_reply(parts: ReplyParts, conversation: Conversation) -> None:
    """What the model said, for requests that go on from here. A call that was cut off is left out."""
    if parts.parts:
        conversation.open_turn()
    for part in parts.parts:
        if part.kind == "thought":
            conversation.think(part.text)
        elif part.kind == "text":
            conversation.reply(part.text)
        elif part.is_whole_call:
            conversation.call(part.call_id, part.name, part.text)


def _json(stored: Stored) -> Response:
    return Response(stored.response, media_type="application/json")
