"""Around every endpoint: the key is checked before anything is read, and every answer carries its request's id."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facet.server.errors import HttpError, error_response
from facet.server.frontend import request_id_of

# What operators and their tools ask needs no key. Everything else does, also what does not exist.
_PUBLIC_PATHS = frozenset({"/health", "/ping", "/version", "/load", "/metrics", "/docs", "/openapi.json"})


class ApiKeyMiddleware:
    """Refuses requests without one of the keys. Digests of equal length are compared in constant time."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], more_public_paths: Iterable[str] = ()) -> None:
        self._app = app
        self._public_paths = _PUBLIC_PATHS.union(more_public_paths)
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "OPTIONS" or _path(scope) in self._public_paths:
            return await self._app(scope, receive, send)
        scheme, _, given = Request(scope).headers.get("authorization", "").partition(" ")
        digest = _digest(given.strip())
        # All of them, always: how long it takes must not tell which key was nearly right.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if scheme.lower() == "bearer" and any(matches):
            return await self._app(scope, receive, send)
        error = HttpError(401, "The API key is missing or wrong. Send it as: Authorization: Bearer KEY.")
        await error_response(error)(scope, receive, send)


class RequestIdMiddleware:
    """Repeats the client's X-Request-Id, or makes one up, on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = request_id_of(Request(scope))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        scope["facet_request_id"] = request_id
        await self._app(scope, receive, send_with_id)


def _path(scope: Scope) -> str:
    """Without what a proxy puts before it (--root-path)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
