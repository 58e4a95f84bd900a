"""Where media may come from: data URLs always, the web and files only where that was allowed, and safely."""

import base64
import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from facet.errors import RequestError
from facet.media.download import Downloads, is_public
from facet.media.limits import MediaLimits
from facet.media.sources import MediaSources

CLOSED = MediaSources()
SMALL = MediaSources(limits=MediaLimits(max_bytes=100))
HOST = "pictures.example"


def refusal(sources: MediaSources, url: str) -> str:
    with pytest.raises(RequestError) as caught:
        sources.read_url(url, "The URL")
    words = str(caught.value)
    assert words.startswith("The URL")
    assert words.endswith(".")
    assert caught.value.field == "messages"
    return words


class TestDataUrls:
    @pytest.mark.parametrize(
        "url",
        [
            "data:image/png;base64," + base64.b64encode(b"abc\xff\xfe").decode(),
            "DATA:;BASE64," + base64.b64encode(b"abc\xff\xfe").decode(),
            "data:image/png;base64,YWJj\n //4=",
            "data:image/png;base64,YWJj%2F%2F4%3D",
            "data:image/png; base64 ,YWJj//4=",
            "data:image/png,abc%FF%FE",
        ],
    )
    def test_bytes(self, url: str) -> None:
        assert CLOSED.read_url(url, "The URL") == b"abc\xff\xfe"

    def test_refused(self) -> None:
        assert "without a comma" in refusal(CLOSED, "data:image/png;base64")
        assert "not valid base64" in refusal(CLOSED, "data:image/png;base64,@@@@")
        assert "not valid base64" in refusal(CLOSED, "data:image/png;base64,YWJ")
        assert "not valid base64" in refusal(CLOSED, "data:image/png;base64,Äbcd")
        assert "at most 100 are allowed" in refusal(SMALL, "data:;base64," + "A" * 2000)
        assert "100 bytes" in refusal(SMALL, "data:," + "A" * 400)


@pytest.mark.parametrize("url", ["", "picture.png", "/etc/passwd", "ftp://a/b", "javascript:alert(1)", "://", "\0"])
def test_other_schemes_are_refused(url: str) -> None:
    assert "Send a data: URL" in refusal(CLOSED, url)


class TestFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        allowed = tmp_path / "allowed"
        (allowed / "below").mkdir(parents=True)
        (allowed / "a.png").write_bytes(b"inside")
        (allowed / "below" / "b c.png").write_bytes(b"below")
        (tmp_path / "secret").write_bytes(b"secret")
        (tmp_path / "allowed_too").mkdir()
        (tmp_path / "allowed_too" / "x").write_bytes(b"secret")
        (allowed / "link").symlink_to(tmp_path / "secret")
        (allowed / "link_folder").symlink_to(tmp_path)
        (allowed / "link_inside").symlink_to(allowed / "a.png")
        os.mkfifo(allowed / "pipe")
        return allowed

    def test_read(self, folder: Path) -> None:
        sources = MediaSources(folder=folder)
        assert sources.read_url(f"file://{folder}/a.png", "The URL") == b"inside"
        assert sources.read_url(f"file://localhost{folder}/below/b%20c.png", "The URL") == b"below"
        assert sources.read_url(f"file://{folder}/link_inside", "The URL") == b"inside"

    def test_closed(self, folder: Path) -> None:
        assert "--allowed-local-media-path" in refusal(CLOSED, f"file://{folder}/a.png")

    @pytest.mark.parametrize(
        "path",
        ["../secret", "link", "link_folder/secret", "below/../../secret", "%2e%2e/secret", "../allowed_too/x", "/.."],
    )
    def test_outside(self, folder: Path, path: str) -> None:
        assert "outside the folder" in refusal(MediaSources(folder=folder), f"file://{folder}/{path}")

    def test_no_files(self, folder: Path) -> None:
        sources = MediaSources(folder=folder, limits=MediaLimits(max_bytes=5))
        assert "No such file" in refusal(sources, f"file://{folder}/missing")
        assert "no ordinary file" in refusal(sources, f"file://{folder}/pipe")
        assert "no ordinary file" in refusal(sources, f"file://{folder}/below")
        assert "6 bytes, but at most 5" in refusal(sources, f"file://{folder}/a.png")
        assert "absolute path" in refusal(sources, "file://other.host/a.png")
        assert "absolute path" in refusal(sources, "file:a.png")
        assert "absolute path" in refusal(sources, f"file://{folder}/a%00.png")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) == public


# Answers of a small server, by path.
Answer = Callable[[socket.socket], None]


def reply(body: bytes = b"picture", status: str = "200 OK", *headers: str) -> Answer:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return lambda stream: stream.sendall("\r\n".join(lines).encode() + body)


def drip(stream: socket.socket) -> None:
    """Never long without a byte, never done."""
    with contextlib.suppress(OSError):
        stream.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            stream.sendall(b"X-A: b\r\n")
            time.sleep(0.02)


def endless(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):
        stream.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(1000):
            stream.sendall(b"1000\r\n" + bytes(4096) + b"\r\n")


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server on this machine that closes the connection after each answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    answers = {
        "/ok": reply(),
        "/query?a=b%20c": reply(b"queried"),
        "/missing": reply(b"secret body", "404 Not Found"),
        "/again": reply(b"", "302 Found", "Location: /ok"),
        "/elsewhere": reply(b"", "302 Found", "Location: http://other.example/ok"),
        "/inside": reply(b"", "302 Found", f"Location: http://private.example:{port}/ok"),
        "/file": reply(b"", "302 Found", "Location: file:///etc/passwd"),
        "/round": reply(b"", "302 Found", "Location: /round"),
        "/nowhere": reply(b"", "302 Found"),
        "/large": reply(bytes(5000)),
        "/packed": reply(b"x", "200 OK", "Content-Encoding: gzip"),
        "/short": lambda stream: stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc"),
        "/garbage": lambda stream: stream.sendall(b"\x16\x03\x01\x02\x00 no HTTP"),
        "/drip": drip,
        "/endless": endless,
    }

    def answer(stream: socket.socket) -> None:
        with stream:
            head = stream.recv(65_536).decode("latin-1")
            parts = head.split(" ")
            if len(parts) > 1 and parts[1] in answers:
                assert f"Host: {HOST}:{port}" in head
                answers[parts[1]](stream)

    def serve() -> None:
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[stream], daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield port
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def web(server: int) -> MediaSources:
    """Two names for that server: one that counts as public here, one that does not."""

    def resolve(host: str, port: int) -> list[str]:
        return {HOST: ["127.0.0.1"], "private.example": ["127.0.0.2"]}[host]

    downloads = Downloads(
        domains=(f"{HOST}:{server}", f"private.example:{server}"),
        max_seconds=1.0,
        resolve=resolve,
        is_public=lambda address: address == "127.0.0.1",
    )
    return MediaSources(downloads=downloads, limits=MediaLimits(max_bytes=1000))


def without_certificates(protocol: int) -> ssl.SSLContext:
    """Encrypts, and nobody has to prove who they are."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


HALF_A_HELLO = b"\x16\x03\x03\x10\x00\x02\x00\x0f\xfc"  # a handshake of TLS whose 4 KiB are to follow


class TestDownloads:
    def test_bodies(self, web: MediaSources, server: int) -> None:
        base = f"http://{HOST}:{server}"
        assert web.read_url(f"{base}/ok", "The URL") == b"picture"
        assert web.read_url(f"{base}/query?a=b%20c#part", "The URL") == b"queried"
        assert web.read_url(f"{base}/again", "The URL") == b"picture"
        assert web.read_url(f"HTTP://{HOST.upper()}.:{server}/ok", "The URL") == b"picture"

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("missing", "answered with status 404"),
            ("elsewhere", "is on other.example, and this server may not download from there"),
            ("inside", "private or special address"),
            ("file", "no http(s) URL"),
            ("round", "redirects more than 3 times"),
            ("nowhere", "redirects more than 3 times"),
            ("large", "more than 1,000 bytes"),
            ("endless", "more than 1,000 bytes"),
            ("packed", "came compressed"),
            ("short", "could not be downloaded|ended before"),
            ("garbage", "could not be downloaded"),
        ],
    )
    def test_refused(self, web: MediaSources, server: int, path: str, words: str) -> None:
        found = refusal(web, f"http://{HOST}:{server}/{path}")
        assert any(word in found for word in words.split("|")), found
        assert "secret" not in found

    def test_slow(self, web: MediaSources, server: int) -> None:
        assert "within 1 seconds" in refusal(web, f"http://{HOST}:{server}/drip")

    @pytest.mark.parametrize("handshake", [True, False])
    def test_slow_and_encrypted(self, handshake: bool) -> None:
        """The connection is cut whatever it is wrapped in, also while hands are shaken."""
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]

        def serve() -> None:
            stream, _ = listener.accept()
            if handshake:
                stream = without_certificates(ssl.PROTOCOL_TLS_SERVER).wrap_socket(stream, server_side=True)
            with contextlib.suppress(OSError), stream:
                stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" if handshake else HALF_A_HELLO)
                for _ in range(250):
                    stream.sendall(b"x")
                    time.sleep(0.02)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        downloads = Downloads(
            domains=(f"{HOST}:{port}",),
            max_seconds=0.5,
            resolve=lambda host, port: ["127.0.0.1"],
            is_public=lambda address: True,
            context=without_certificates(ssl.PROTOCOL_TLS_CLIENT),
        )
        start = time.monotonic()
        found = refusal(MediaSources(downloads=downloads), f"https://{HOST}:{port}/a")
        assert time.monotonic() - start < 4
        assert "within 0.5 seconds" in found
        thread.join()
        listener.close()

    @pytest.mark.parametrize(
        "url",
        [
            "http://127.0.0.1/a",
            "http://[::1]/a",
            "http://2130706433/a",
            "http://0x7f.1/a",
            "http://localhost/a",
            "http://metadata.google.internal/a",
            f"http://{HOST}/a",
            f"http://{HOST}@evil.example/a",
            f"http://evil.example/{HOST}",
            f"http://{HOST}.evil.example/a",
            f"http://evil.example\\@{HOST}/a",
            f"http://{HOST}:80@evil.example/a",
            f"http://user:word@{HOST}/a",
            f"http://{HOST}/a b",
            f"http://{HOST}/a\r\nHost: evil",
            f"http://{HOST}:99999/a",
            "http:///a",
            "http://",
            "http://[::1",
            "http://" + "a" * 300 + ".example/",
        ],
    )
    def test_nobody_is_asked(self, url: str) -> None:
        def never(host: str, port: int) -> list[str]:
            raise AssertionError(f"{host} was resolved")

        refusal(MediaSources(downloads=Downloads(domains=(f"{HOST}:8080",), resolve=never)), url)

    def test_one_private_address_among_several_is_enough(self) -> None:
        downloads = Downloads(domains=(HOST,), resolve=lambda host, port: ["8.8.8.8", "10.0.0.1"])
        assert "private or special" in refusal(MediaSources(downloads=downloads), f"http://{HOST}/a")

    def test_a_name_is_resolved_once_and_that_address_is_dialled(self, server: int) -> None:
        """A name that answers with another address the second time gets nothing by it."""
        asked: list[str] = []

        def changing(host: str, port: int) -> list[str]:
            asked.append(host)
            return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.66"]

        downloads = Downloads(domains=(f"{HOST}:{server}",), resolve=changing, is_public=lambda a: a == "127.0.0.1")
        assert MediaSources(downloads=downloads).read_url(f"http://{HOST}:{server}/ok", "The URL") == b"picture"
        assert asked == [HOST]

    def test_every_host_may_be_allowed_but_never_a_private_one(self) -> None:
        downloads = Downloads(domains=("*",), resolve=lambda host, port: ["10.0.0.1"])
        assert "private or special" in refusal(MediaSources(downloads=downloads), "https://any.example/a")

    def test_names_that_do_not_exist(self) -> None:
        def unknown(host: str, port: int) -> list[str]:
            raise socket.gaierror(-2, "Name or service not known")

        downloads = Downloads(domains=(HOST,), resolve=unknown)
        assert "could not be downloaded (gaierror)" in refusal(MediaSources(downloads=downloads), f"http://{HOST}/a")
