"""Serves the page at /: the files of the folder `page`, unchanged.

They are read once at the start. Browsers cache them and check their tag on every use, so that a new version of Facet
shows at once. The policy allows only these files to run or load, so a model's text can do nothing.
"""

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from facet.server.frontend import Endpoint, guarded

INDEX = "index.html"
_FOLDER = "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",  # thumbnails, of files that the user chose
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


@dataclass(frozen=True, slots=True)
class PageFile:
    name: str
    content: bytes

    @property
    def path(self) -> str:
        return "/" if self.name == INDEX else f"/{_FOLDER}/{self.name}"

    def headers(self) -> dict[str, str]:
        return {
            "etag": f'"{hashlib.sha256(self.content).hexdigest()[:32]}"',
            "cache-control": "no-cache",  # cache it, and check whether it is still valid
            "content-type": _TYPES[self.name[self.name.rindex(".") :]],
            "content-security-policy": _POLICY,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }


def page_files() -> list[PageFile]:
    folder = resources.files("facet.server").joinpath(_FOLDER)
    return [PageFile(entry.name, entry.read_bytes()) for entry in folder.iterdir() if entry.is_file()]


def page_routes() -> list[Route]:
    return [Route(file.path, guarded(_endpoint(file)), methods=["GET"]) for file in page_files()]


def _endpoint(file: PageFile) -> Endpoint:
    headers = file.headers()

    async def respond(request: Request) -> Response:
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if headers["etag"] in known:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers)

    return respond
