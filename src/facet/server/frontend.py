"""What all endpoints share: reading a body, work in threads, request ids, responses and errors."""

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from facet.config import ServerConfig
from facet.errors import RequestError
from facet.prompts import ChatQuestion, PreparedQuestion, TextQuestion, prepare
from facet.prompts.preparing import tokenize_chat
from facet.server.body import Decoder, read_body
from facet.server.dialect import OPENAI, Dialect
from facet.server.engine_bridge import EngineBridge
from facet.server.media_desk import MediaDesk
from facet.server.metrics import Metrics
from facet.server.served_model import ServedModel
from facet.server.streaming import ClientGoneError
from facet.server.traces import Traces

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Endpoint = Callable[[Request], Awaitable[Response]]

_USABLE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
LARGE_BODY_BYTES = 1 << 20
_CLIENT_GONE = 499  # what proxies log for it; no client receives it


@dataclass(frozen=True, slots=True)
class Frontend:
    """Shared by every request; the bridge and the metrics have state, the rest is fixed."""

    config: ServerConfig
    bridge: EngineBridge
    model: ServedModel
    metrics: Metrics
    pool: ThreadPoolExecutor
    media: MediaDesk
    traces: Traces | None = None  # None: nobody wants them
    large_bodies: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))

    @property
    def model_names(self) -> tuple[str, ...]:
        """What requests may name: the model, and its adapters behind it."""
        return (*self.model.names, *self.bridge.adapters)

    def model_named(self, asked: str | None) -> ServedModel:
        """The model that a request names, with its adapter if it names one."""
        return self.model.named(asked, self.bridge.adapters)

    @contextlib.asynccontextmanager
    async def reading(self, request: Request, decoder: Decoder) -> AsyncIterator[Any]:
        """The decoded body, inside which its requests are to be prepared.

        Large bodies take turns: each may need several times its size until it is prepared or refused.
        """
        body = await read_body(request, max_bytes=self.config.max_request_bytes, timeout=self.config.request_timeout)
        async with self.large_bodies if len(body) > LARGE_BODY_BYTES else contextlib.nullcontext():
            fields = decoder.decode(body)
            del body
            yield fields

    async def in_thread(self, function: Callable[[], Result]) -> Result:
        """Rendering and encoding take milliseconds for long prompts; the loop has other clients to serve."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function)

    def check_tool_choice(self, question: ChatQuestion) -> None:
        """Whether the model may choose to call is the server's to say."""
        is_free = question.tools and question.tool_choice in (None, "auto")
        if is_free and not self.config.enable_auto_tool_choice:
            raise RequestError(
                "This server was started with --no-enable-auto-tool-choice. Set tool_choice to none, required, or a "
                "tool.",
                field="tool_choice",
            )

    async def prepare(
        self, question: ChatQuestion | TextQuestion, model: ServedModel, response_id: str
    ) -> PreparedQuestion:
        """Makes the requests of a question, unless there is no room for them. `model` is the one that it names."""
        n = question.sampling.n
        check_count(1, n, self.bridge.max_pending)
        self.bridge.check_room(n)
        request_ids = self.bridge.new_ids(response_id, n)
        media = await self.media.read(question, model.asked)
        return await self.in_thread(partial(prepare, question, model.asked, request_ids, media))

    async def count_tokens(self, question: ChatQuestion) -> int:
        """Counts the tokens of a prompt that nobody answers: it may be too long for that, and the server may be
        busy."""
        media = await self.media.read(question, self.model.asked)
        return len((await self.in_thread(partial(tokenize_chat, question, self.model.asked, media))).token_ids)


def check_count(num_prompts: int, n: int, limit: int) -> None:
    """Refuses more answers than the server can ever have, which would otherwise be told to retry for ever."""
    if num_prompts * n > limit:
        raise RequestError(
            f"{num_prompts} prompts with n = {n} are {num_prompts * n} answers, but this server takes at most "
            f"{limit} at a time. Ask for fewer.",
            field="n" if n > 1 else "prompt",
        )


def json_response(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def request_id_of(request: Request) -> str:
    """The client's own id if it can be repeated in a header, else a new one; constant within a request."""
    known: str | None = request.scope.get("facet_request_id")
    if known is not None:
        return known
    given = request.headers.get("x-request-id", "")
    return given if _USABLE_ID.fullmatch(given) else secrets.token_hex(16)


def response_id_of(prefix: str, wanted: str | None, request: Request) -> str:
    """The id of a response, with the id that the body asks for, if any. It appears in the log, where a line break could
    forge lines."""
    if wanted and not _USABLE_ID.fullmatch(wanted):
        raise RequestError(
            f"request_id has {len(wanted)} characters, but must have at most 128, of letters, digits and _.:/+=@-.",
            field="request_id",
        )
    return f"{prefix}-{wanted or request_id_of(request)}"


def guarded(endpoint: Endpoint, dialect: Dialect = OPENAI) -> Endpoint:
    """Turns whatever goes wrong in an endpoint into an error response of its API."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGoneError:
            return Response(status_code=_CLIENT_GONE)
        except Exception as error:
            return dialect.error_response(error)

    return respond
