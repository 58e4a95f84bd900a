"""Middleware of every endpoint: checks the API key before anything is read, and adds the request id to responses."""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facet.server.dialect import Dialect
from facet.server.errors import HttpError
from facet.server.frontend import request_id_of

# Paths for operators and their tools need no key. Everything else does, even paths that do not exist.
_PUBLIC_PATHS = frozenset({"/health", "/ping", "/version", "/load", "/metrics", "/docs", "/openapi.json"})


class ApiKeyMiddleware:
    """Refuses requests without one of the keys. Digests of equal length are compared in constant time."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        dialect_of: Callable[[str], Dialect],
        more_public_paths: Iterable[str] = (),
    ) -> None:
        """`dialect_of` says how errors of a path are written."""
        self._app = app
        self._dialect_of = dialect_of
        self._public_paths = _PUBLIC_PATHS.union(more_public_paths)
        self._digests = [_digest(key.encode("utf-8", "surrogateescape")) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or path_of(scope) in self._public_paths:
            return await self._app(scope, receive, send)
        digest = _digest(_given_key(Request(scope)))
        # Always all of them: the time it takes must not reveal which key was nearly right.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if any(matches):
            scope["facet_key_digest"] = digest
            return await self._app(scope, receive, send)
        error = HttpError(
            401, "The API key is missing or wrong. Send it as Authorization: Bearer KEY, or as x-api-key: KEY."
        )
        await self._dialect_of(path_of(scope)).error_response(error)(scope, receive, send)


def key_digest_of(request: Request) -> bytes:
    """Tells the holders of different keys apart; the same for everyone where no key is needed."""
    digest: bytes = request.scope.get("facet_key_digest", b"")
    return digest


def _given_key(request: Request) -> bytes:
    """OpenAI's clients send a bearer token, Anthropic's either that or a header of their own."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token.strip(" ") if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return key.encode("latin-1")  # the bytes as they came: Starlette reads headers so


class RequestIdMiddleware:
    """Adds X-Request-Id to every response: the client's, or a new one. Anthropic's clients read it as Request-Id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = request_id_of(Request(scope))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = request_id
            await send(message)

        scope["facet_request_id"] = request_id
        await self._app(scope, receive, send_with_id)


def path_of(scope: Scope) -> str:
    """Without the prefix that a proxy adds (--root-path)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
