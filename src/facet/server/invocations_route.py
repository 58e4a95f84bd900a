"""/invocations, where SageMaker sends every request: one with messages is a chat completion, others are completions."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from facet.server.body import read_body
from facet.server.errors import HttpError
from facet.server.frontend import Endpoint, Frontend

_NULL = msgspec.Raw(b"null")


class _Shape(msgspec.Struct):
    """What tells the requests of one endpoint from those of another."""

    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL


class InvocationsEndpoint:
    """Hands the request on to the endpoint that it is meant for."""

    def __init__(self, frontend: Frontend, chat: Endpoint, completions: Endpoint) -> None:
        self._config = frontend.config
        self._chat = chat
        self._completions = completions
        self._decoder = msgspec.json.Decoder(_Shape)

    async def __call__(self, request: Request) -> Response:
        config = self._config
        body = await read_body(request, max_bytes=config.max_request_bytes, timeout=config.request_timeout)
        endpoint, receive = self._endpoint_of(body), _once_more(body, request.receive)
        del body  # it may be large, and the endpoint makes its own of it
        return await endpoint(Request(request.scope, receive))

    def _endpoint_of(self, body: bytearray) -> Endpoint:
        """The endpoint of a body. What has both is a conversation, as in vLLM."""
        try:
            shape = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._chat  # which says what is wrong with it
        if shape.messages != _NULL:
            return self._chat
        if shape.prompt != _NULL:
            return self._completions
        raise HttpError(
            400,
            "The body has neither messages nor a prompt. Send messages, as to /v1/chat/completions, or a prompt, as to "
            "/v1/completions.",
        )


def _once_more(body: bytearray, receive: Receive) -> Receive:
    """A channel that begins with a body which has been read, and goes on with what comes after it."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again
