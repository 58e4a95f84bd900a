"""Downloads media from hosts that are allowed by name, and only from public addresses.

A name is resolved once, every address it has is checked, and the connection goes to one of the checked addresses: a
name that changes between check and use changes nothing. Redirects go through the same checks. Time and size are limited
while reading. An error never repeats what the other side answered.
"""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from facet.errors import RequestError
from facet.media.limits import refused

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK_BYTES = 1 << 16
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
ANY_DOMAIN = "*"

Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_public(address: str) -> bool:
    """Whether an address belongs to the Internet, and not to this machine, its network or a special use."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        embedded = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if found in _NAT64:
            embedded = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
    return found.is_global and not found.is_multicast and not found.is_reserved


@dataclass(frozen=True, slots=True)
class _Target:
    scheme: str
    host: str
    port: int
    path: str  # with the query


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloads:
    domains: tuple[str, ...] = ()  # host, or host:port where it is not the usual one; "*": every host
    max_seconds: float = 10.0  # for everything: name, connection, redirects, body
    max_redirects: int = 3
    resolve: Resolve = resolve
    is_public: Callable[[str], bool] = is_public
    context: ssl.SSLContext | None = None  # None: the system's certificates

    def read(self, url: str, max_bytes: int, where: str) -> bytes:
        """The body behind a URL. `where` names it in error messages."""
        deadline = time.monotonic() + self.max_seconds
        too_late = refused(
            f"{where} did not arrive within {self.max_seconds:g} seconds. Send the file itself as a data: URL."
        )
        try:
            body = self._follow(url, max_bytes, deadline, where)
        except RequestError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            if time.monotonic() >= deadline:
                raise too_late from None
            raise refused(
                f"{where} could not be downloaded ({type(error).__name__}). Check the URL, or send the file itself as "
                "a data: URL."
            ) from None
        if time.monotonic() >= deadline:  # it was cut, which may look like an end
            raise too_late
        return body

    def _follow(self, url: str, max_bytes: int, deadline: float, where: str) -> bytes:
        for _ in range(self.max_redirects + 1):
            target = self._checked(url, where)
            with self._connected(target, deadline, where) as connection, _ask(connection, target) as response:
                if response.status not in _REDIRECTS:
                    return _body(response, max_bytes, deadline, where)
                location = response.headers.get("Location") or ""
            url = urllib.parse.urljoin(url, location)
            if target.scheme == "https" and not url.lower().startswith("https:"):
                raise refused(f"{where} redirects from https to an unprotected address. Send the final URL.")
        raise refused(f"{where} redirects more than {self.max_redirects} times. Send the final URL.")

    def _checked(self, url: str, where: str) -> _Target:
        """What a URL names, if it may be asked."""
        if any(character <= " " or character in "\\\x7f" for character in url):
            raise refused(f"{where} is no valid URL. Percent-encode blanks and special characters.")
        parsed = urllib.parse.urlsplit(url)
        scheme, host = parsed.scheme.lower(), (parsed.hostname or "").rstrip(".")
        if scheme not in _PORTS or not host:
            raise refused(f"{where} is no http(s) URL with a host. Send the file itself as a data: URL.")
        if parsed.username is not None or parsed.password is not None:
            raise refused(f"{where} has a user name in it. Send the file itself as a data: URL.")
        host = host if ":" in host else host.encode("idna").decode().lower()
        port = parsed.port or _PORTS[scheme]
        name = host if port == _PORTS[scheme] else f"{host}:{port}"
        allowed = {domain.lower().rstrip(".") for domain in self.domains}
        if name not in allowed and not (ANY_DOMAIN in allowed and name == host):
            advice = (
                "Send the file itself as a data: URL, or allow the host with --allowed-media-domains (in Python: "
                "allowed_media_domains)."
            )
            raise refused(f"{where} is on {name[:100]}, and this server may not download from there. {advice}")
        path = urllib.parse.quote(parsed.path or "/", safe="/%:@!$&'()*+,;=~-._")
        query = f"?{urllib.parse.quote(parsed.query, safe='/%:@!$&()*+,;=~-._?')}" if parsed.query else ""
        return _Target(scheme, host, port, path + query)

    @contextlib.contextmanager
    def _connected(self, target: _Target, deadline: float, where: str) -> Iterator[http.client.HTTPConnection]:
        """A connection to one of the target's addresses, which is cut at the deadline."""
        addresses = self.resolve(target.host, target.port)
        if not addresses or not all(map(self.is_public, addresses)):
            raise refused(f"{where} is on a private or special address, which is never asked. Use a public host.")
        context = (self.context or ssl.create_default_context()) if target.scheme == "https" else None
        stream = _dial(addresses, target.port, deadline)
        if context is not None:
            # Wrapping leaves the plain socket empty, so the watchdog needs the new one, before it shakes hands.
            stream = context.wrap_socket(stream, server_hostname=target.host, do_handshake_on_connect=False)
        watchdog = threading.Timer(max(0.0, deadline - time.monotonic()), _cut, [stream])
        watchdog.start()
        connection = http.client.HTTPConnection(target.host, target.port)
        try:
            if isinstance(stream, ssl.SSLSocket):
                stream.do_handshake()
            connection.sock = stream
            yield connection
        finally:
            watchdog.cancel()
            connection.close()
            stream.close()


def _dial(addresses: Sequence[str], port: int, deadline: float) -> socket.socket:
    failure: OSError = TimeoutError()
    for address in addresses:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        try:
            return socket.create_connection((address, port), timeout=remaining)
        except OSError as error:
            failure = error
    raise failure


def _cut(stream: socket.socket) -> None:
    """Ends whatever waits for this connection. A timeout of the socket would begin anew with every byte."""
    with contextlib.suppress(OSError):
        # Not the method of an SSLSocket, which would make a plain one of it under the thread that reads.
        socket.socket.shutdown(stream, socket.SHUT_RDWR)


def _ask(connection: http.client.HTTPConnection, target: _Target) -> http.client.HTTPResponse:
    usual = target.port == _PORTS[target.scheme]
    host = f"[{target.host}]" if ":" in target.host else target.host
    connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host if usual else f"{host}:{target.port}")
    connection.putheader("User-Agent", "facet")
    connection.putheader("Accept", "image/*, audio/*, video/*")
    connection.putheader("Accept-Encoding", "identity")
    connection.putheader("Connection", "close")
    connection.endheaders()
    return connection.getresponse()


def _body(response: http.client.HTTPResponse, max_bytes: int, deadline: float, where: str) -> bytes:
    if response.status != 200:
        raise refused(f"{where} was answered with status {response.status}. Check the URL.")
    if response.headers.get("Content-Encoding", "identity").lower() not in ("identity", ""):
        raise refused(f"{where} came compressed, which nobody asked for. Send the file itself as a data: URL.")
    too_large = refused(f"{where} has more than {max_bytes:,} bytes, which is the limit. Send a smaller file.")
    if response.length is not None and response.length > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while part := response.read(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise too_large
    if response.length and time.monotonic() < deadline:  # what was announced and did not come
        raise refused(f"{where} ended before it was complete. Try again.")
    return b"".join(parts)
