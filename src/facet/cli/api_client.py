"""A client of the OpenAI API for one caller at a time, over the network or a local socket file.

Knows HTTP, JSON and the format of errors; not what a request or an answer means.
"""

import http.client
import json
import os
import socket
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from facet.errors import ConfigError, EngineError, RequestError
from facet.http.event_stream import END_OF_STREAM, EventReader
from facet.http.server_url import ServerUrl

Body = Mapping[str, Any]

_CONNECT_SECONDS = 10.0
_MOST_WORDS = 500  # of an error that is not in the form of the API


class ServerFailedError(EngineError):
    """The server could not answer: it was overloaded or failed, or the connection was lost."""


class ApiClient:
    """Sends requests to one server."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], http.client.HTTPConnection],
        target: Callable[[str], str],
        api_key: str | None,
    ) -> None:
        self._name = name  # for messages
        self._connect = connect
        self._target = target
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    @classmethod
    def at_url(cls, url: str, api_key: str | None = None) -> "ApiClient":
        place = ServerUrl.parse(url)
        kind = http.client.HTTPSConnection if place.is_tls else http.client.HTTPConnection
        return cls(str(place), lambda: kind(place.host, place.port, timeout=_CONNECT_SECONDS), place.target, api_key)

    @classmethod
    def at_socket(cls, path: Path) -> "ApiClient":
        return cls("the engine", lambda: _SocketFileConnection(path), lambda endpoint: endpoint, None)

    def get(self, endpoint: str) -> Any:
        return self._whole("GET", endpoint, None)

    def post(self, endpoint: str, body: Body) -> Any:
        return self._whole("POST", endpoint, body)

    def stream(self, endpoint: str, body: Body) -> Generator[dict[str, Any], None, None]:
        """The events of an answer as they arrive. Closing the iterator early ends the request on the server too."""
        connection, response = self._send("POST", endpoint, {**body, "stream": True})
        reader = EventReader()
        try:
            while part := response.read1(1 << 16):
                for data in reader.feed(part):
                    if data == END_OF_STREAM:
                        return
                    event = self._parse(data)
                    if "error" in event:
                        raise ServerFailedError(_words(event) or "the answer failed")
                    yield event
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailedError(f"The connection to {self._name} was lost: {_reason(error)}.") from None
        finally:
            connection.close()
        raise ServerFailedError(f"{self._name} ended its answer before it was complete.")

    def _whole(self, method: str, endpoint: str, body: Body | None) -> Any:
        connection, response = self._send(method, endpoint, body)
        try:
            return self._parse(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailedError(f"The connection to {self._name} was lost: {_reason(error)}.") from None
        finally:
            connection.close()

    def _send(
        self, method: str, endpoint: str, body: Body | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connect()
        try:
            try:
                connection.connect()
            except OSError as error:
                raise ConfigError(
                    f"{self._name} cannot be reached: {_reason(error)}. Start a server there with `facet serve`, or "
                    "leave --url out."
                ) from None
            connection.sock.settimeout(None)  # a long prompt takes as long as it takes
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, self._target(endpoint), content, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                self._refuse(response, endpoint)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerFailedError(f"{self._name} gave no answer: {_reason(error)}.") from None
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _refuse(self, response: http.client.HTTPResponse, endpoint: str) -> None:
        text = response.read()
        try:
            words = _words(json.loads(text))
        except ValueError:
            words = None
        words = words or text.decode(errors="replace").strip()[:_MOST_WORDS] or response.reason
        if response.status == 401:
            raise ConfigError(f"{self._name} requires an API key: give it with --api-key. ({words})")
        if response.status == 404:
            raise ConfigError(f"{self._name} has no {endpoint} for this: {words}")
        if response.status < 500:
            raise RequestError(words)
        raise ServerFailedError(f"{self._name} answered with {response.status}: {words}")

    def _parse(self, text: bytes) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise ServerFailedError(f"{self._name} sent something that is not JSON: {text[:60]!r}.") from None


class _SocketFileConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _words(response: Any) -> str | None:
    """The error message in any of the formats that servers use."""
    if not isinstance(response, dict):
        return None
    error = response.get("error", response)
    found = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return None if found is None else str(found)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
