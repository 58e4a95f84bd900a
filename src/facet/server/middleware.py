"""Middleware of every endpoint: checks the API key before anything is read, adds the request id to responses, and
counts them."""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from facet.server.dialect import Dialect
from facet.server.errors import HttpError
from facet.server.frontend import request_id_of
from facet.server.http_metrics import HttpMetrics

# Paths for operators and their tools need no key. Everything else does, even paths that do not exist.
_PUBLIC_PATHS = frozenset({"/health", "/ping", "/version", "/load", "/metrics", "/docs", "/openapi.json"})
_NO_ROUTE = "none"
_NEVER_ANSWERED = 500  # what the HTTP library then sends


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


class HttpMetricsMiddleware:
    """The outermost one: what others refuse counts, too."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._routes: Mapping[object, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path, status, start = path_of(scope), _NEVER_ANSWERED, time.monotonic()

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            self._routes = self._routes or _routes_of(scope["app"])
            # Where nothing was asked for an endpoint, as without a key, the path may still be that of a route.
            handler = self._routes.get(scope.get("endpoint", path), _NO_ROUTE)
            self._metrics.observe(scope["method"], handler, status, time.monotonic() - start)


def path_of(scope: Scope) -> str:
    """The path without the prefix that a proxy adds (--root-path)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _routes_of(app: Starlette) -> Mapping[object, str]:
    """Paths of routes, by their endpoints and by themselves."""
    found: dict[object, str] = {}
    for route in app.routes:
        assert isinstance(route, Route), "the app declares no others"
        found[route.endpoint] = found[route.path] = route.path
    return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
