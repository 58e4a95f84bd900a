"""Carries out one HTTP request, from its engine requests to its response: whole, or as a stream of events.

It is the same for every endpoint that generates; an endpoint's `Exchange` defines what its answers look like.
"""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from facet.engine.messages import NewTokens
from facet.errors import FacetError, RequestError
from facet.prompts import AnswerTokens
from facet.request import Request
from facet.server.call_timer import CallTimer, Observers
from facet.server.dialect import Dialect
from facet.server.engine_bridge import EngineCall
from facet.server.errors import Fault, HttpError
from facet.server.frontend import Frontend, json_response
from facet.server.streaming import ClientGoneError, EventStream, WatchedCall

# How many tokens of a prompt were found in the cache, and of how many. A router in front learns from it, and does so
# from streams without usage too.
CACHED_TOKENS_HEADER = "x-facet-cached-tokens"


class Answer(Protocol):
    """What the endpoints' answers have in common."""

    tokens: AnswerTokens

    def feed(self, new: NewTokens) -> object:
        """Take what a step brought."""
        ...


AnswerType = TypeVar("AnswerType", bound=Answer)


class Exchange(Protocol[AnswerType]):
    """The answers to one HTTP request, one for each engine request, and what they are sent as."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def response_id(self) -> str: ...

    @property
    def answers(self) -> Sequence[AnswerType]: ...

    def response(self) -> msgspec.Struct:
        """The whole response, once every answer has ended."""
        ...

    def opening(self) -> list[msgspec.Struct]:
        """The events that begin a stream, before there is a token."""
        ...

    def chunks(self, answer: AnswerType, new: NewTokens) -> list[msgspec.Struct]:
        """Feed the answer, and return the events this leads to."""
        ...

    def closing(self) -> list[msgspec.Struct]:
        """The events that end a stream, once every answer has ended."""
        ...

    def failure(self, fault: Fault) -> list[msgspec.Struct]:
        """The events that end a stream that went wrong."""
        ...


async def carry_out(
    exchange: Exchange[AnswerType],
    requests: Sequence[Request],
    frontend: Frontend,
    http_request: HttpRequest,
    *,
    n: int,
    stream: bool,
) -> Response:
    """Submit the requests and answer. The engine stops working on them when the client leaves."""
    timer = make_timer(exchange, requests, frontend, http_request, n=n)
    watched = WatchedCall(frontend.bridge.submit(requests), http_request.receive, timer)
    call = watched.call
    try:
        if stream:
            # The response starts after the first tokens, so that a refusal by the engine still has its own status.
            batch = await call.next()
            events = _events(exchange, call, batch, timer)
            response: Response = EventStream(events, watched, exchange.dialect.media_type)
            first, num_cached = (batch[0][0], batch[0][1].num_cached_tokens) if batch else (0, 0)
        else:
            await collect(exchange, call, timer)
            watched.close()
            response = json_response(exchange.response())
            first, num_cached = 0, exchange.answers[0].tokens.num_cached_tokens
    except BaseException:
        watched.close()
        raise
    response.headers[CACHED_TOKENS_HEADER] = f"{num_cached}/{len(requests[first].prompt_token_ids)}"
    return response


def make_timer(
    exchange: Exchange[AnswerType],
    requests: Sequence[Request],
    frontend: Frontend,
    http_request: HttpRequest,
    *,
    n: int,
) -> CallTimer:
    observers = Observers(
        metrics=frontend.metrics,
        traces=frontend.traces,
        headers=http_request.headers,
        log_as=exchange.response_id if frontend.config.enable_log_requests else None,
    )
    return CallTimer(requests, observers, n=n)


async def collect(exchange: Exchange[AnswerType], call: EngineCall, timer: CallTimer) -> None:
    """Feeds the answers until all have ended."""
    num_open = len(exchange.answers)
    while num_open:
        for answer, new in _take(await call.next(), call, exchange.answers, timer):
            answer.feed(new)
            num_open -= answer.tokens.finish_reason is not None


async def _events(
    exchange: Exchange[AnswerType], call: EngineCall, batch: Sequence[tuple[int, NewTokens]], timer: CallTimer
) -> AsyncIterator[bytes]:
    """A part of the body for each batch of messages, with the events of each message of it."""
    as_bytes = exchange.dialect.event
    if opening := exchange.opening():
        yield b"".join(map(as_bytes, opening))
    num_open = len(exchange.answers)
    failure: Exception | None = None
    while num_open and failure is None:
        events: list[bytes] = []
        try:
            for answer, new in _take(batch or await call.next(), call, exchange.answers, timer):
                events += map(as_bytes, exchange.chunks(answer, new))
                num_open -= answer.tokens.finish_reason is not None
        except ClientGoneError:
            raise
        except Exception as error:
            failure = error  # told after what came before it
        if events:
            yield b"".join(events)
        batch = ()
    if failure is not None:
        yield b"".join(map(as_bytes, exchange.failure(exchange.dialect.fault(failure))))
    else:
        yield b"".join(map(as_bytes, exchange.closing())) + exchange.dialect.end


def _why(new: NewTokens, tokens: AnswerTokens) -> FacetError:
    """Why an answer failed. Where settings of the request leave it no token, it is the client who can change that."""
    sampling, num_tokens = tokens.sampling, len(tokens.token_ids)
    settings = {
        "min_tokens": sampling.min_tokens > num_tokens,
        "allowed_token_ids": sampling.allowed_token_ids is not None,
        "bad_words": bool(sampling.bad_words_token_ids),
    }
    names = [name for name, is_given in settings.items() if is_given]
    if not new.is_contradiction or not names:
        return HttpError(500, f"The answer failed: {new.error or 'it was ended early by the engine'}.")
    return RequestError(
        f"No token may follow the {num_tokens} that the answer has: {', '.join(names)} and what structured_outputs, "
        "response_format or tools ask for contradict each other. Change one of them.",
        field=names[0],
    )


def _take(
    batch: Sequence[tuple[int, NewTokens]], call: EngineCall, answers: Sequence[AnswerType], timer: CallTimer
) -> Iterator[tuple[AnswerType, NewTokens]]:
    """Each answer with what to feed it. The caller feeds between turns; ends are settled on the next."""
    now = time.monotonic()
    for index, new in batch:
        answer = answers[index]
        if answer.tokens.finish_reason is not None:
            continue  # it ended by its text, and this was on its way
        if new.finish_reason in ("error", "abort"):
            timer.on_failure(new.finish_reason, sum(one.tokens.finish_reason is None for one in answers) - 1)
            raise _why(new, answer.tokens)
        if new.token_ids:
            timer.on_tokens(index, now, new.queue_seconds)
        yield answer, new
        tokens = answer.tokens
        if tokens.finish_reason is not None:
            if new.finish_reason is None:
                call.cancel(index)
            timer.on_end(
                index,
                tokens.finish_reason,
                len(tokens.token_ids),
                num_cached_tokens=tokens.num_cached_tokens,
                is_loop=tokens.is_loop,
            )
