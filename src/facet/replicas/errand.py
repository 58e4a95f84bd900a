"""A client's request as it is passed on: the bytes for a replica, and what it is routed by."""

from dataclasses import dataclass

from starlette.requests import Request

from facet.router import RouteKey, make_route_key
from facet.server.frontend import request_id_of
from facet.server.middleware import key_digest_of

SESSION_HEADER = "x-session-id"
RESPONSES_PATH = "/v1/responses"
# Headers that are about one connection only, or that the proxy sets itself.
_NOT_FORWARDED = frozenset({b"connection", b"keep-alive", b"proxy-authorization", b"te", b"trailer",
                            b"transfer-encoding", b"upgrade", b"expect", b"content-length", b"origin",
                            b"x-request-id"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Errand:
    path: str
    owner: bytes  # tells the holders of API keys apart
    key: RouteKey
    message: bytes  # HTTP, with a body of known length


def make_errand(request: Request, path: str, body: bytes | bytearray) -> Errand:
    """`path` is the one behind --root-path, which replicas know nothing of."""
    scope, owner = request.scope, key_digest_of(request)
    name = path.removeprefix(f"{RESPONSES_PATH}/").partition("/")[0]
    response_id = name if name.startswith("resp_") else None  # others ask about no stored response
    key = make_route_key(path, body, owner=owner, session=request.headers.get(SESSION_HEADER), pin=response_id)
    method = "GET" if request.method == "HEAD" else request.method  # the HTTP library leaves out the body
    target = scope["raw_path"].removeprefix(scope.get("root_path", "").encode())
    if scope["query_string"]:
        target += b"?" + scope["query_string"]
    lines = [b"%b %b HTTP/1.1\r\n" % (method.encode(), target)]
    lines += [b"%b: %b\r\n" % (name, value) for name, value in scope["headers"] if name not in _NOT_FORWARDED]
    lines.append(b"x-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (request_id_of(request).encode(), len(body)))
    return Errand(path, owner, key, b"".join((*lines, body)))
