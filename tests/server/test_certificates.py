"""HTTPS: certificates of clients, and files that are replaced while the server runs."""

import contextlib
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import facet.server.certificates as certificates
from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.server.certificates import check_certificates, keeper_of, without_tls
from facet.server.draining import DrainingServer
from facet.server.run import uvicorn_config
from tests.server.running import PATIENCE, wait_until


def make_pair(folder: Path, name: str) -> tuple[str, str]:
    """A certificate that has signed itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subprocess.run(
        [*command.split(), "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", certificate,
         "-keyout", key], check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return certificate, key


@contextlib.contextmanager
def https_server(**settings: Any) -> Iterator[int]:
    """Its port."""
    config = ServerConfig(model="m", host="127.0.0.1", port=0, **settings)
    check_certificates(config)

    async def respond(request: object) -> PlainTextResponse:
        return PlainTextResponse("here")

    server = DrainingServer(
        uvicorn_config(config, Starlette(routes=[Route("/", respond)])), keep_fresh=keeper_of(config)
    )
    server.config.port = 0
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive()


def ask(port: int, trusted: str, pair: tuple[str, str] | None = None) -> str:
    context = ssl.create_default_context(cafile=trusted)
    if pair is not None:
        context.load_cert_chain(*pair)
    with httpx.Client(verify=context, timeout=PATIENCE) as client:
        return client.get(f"https://127.0.0.1:{port}/").text


def test_clients_with_certificates_alone(tmp_path: Path) -> None:
    server, client, stranger = (make_pair(tmp_path, name) for name in ("server", "client", "stranger"))
    with https_server(ssl_certfile=server[0], ssl_keyfile=server[1], ssl_ca_certs=client[0], ssl_cert_reqs=2) as port:
        assert ask(port, server[0], client) == "here"
        for pair in (None, stranger):
            with pytest.raises(httpx.TransportError):
                ask(port, server[0], pair)


def test_a_new_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(certificates, "_SECONDS_BETWEEN_LOOKS", 0.02)
    old, new = make_pair(tmp_path, "old"), make_pair(tmp_path, "new")
    used = (str(tmp_path / "used.pem"), str(tmp_path / "used.key"))
    for source, target in zip(old, used, strict=True):
        shutil.copy(source, target)
    with (
        caplog.at_level("INFO"),
        https_server(ssl_certfile=used[0], ssl_keyfile=used[1], enable_ssl_refresh=True) as port,
    ):
        assert ask(port, old[0]) == "here"
        time.sleep(0.1)  # the files have been looked at
        shutil.copy(new[0], used[0])  # and its key is yet to come
        wait_until(lambda: "before" in caplog.text)
        assert ask(port, old[0]) == "here"
        shutil.copy(new[1], used[1])
        wait_until(lambda: "have changed" in caplog.text)
        assert ask(port, new[0]) == "here"
        with pytest.raises(httpx.ConnectError):
            ask(port, old[0])


def test_what_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificate, key = make_pair(tmp_path, "server")
    pair = {"ssl_certfile": certificate, "ssl_keyfile": key}
    for settings, words in (
        ({"ssl_ca_certs": key, "ssl_cert_reqs": 1}, "--ssl-ca-certs .*server.key cannot be used"),
        ({"ssl_ciphers": "ROT13"}, "--ssl-ciphers ROT13 names no cipher"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_certificates(ServerConfig(model="m", **pair, **settings))
    check_certificates(ServerConfig(model="m", **pair, ssl_ca_certs=certificate, ssl_ciphers="ECDHE+AESGCM"))
    assert "No client is asked for a certificate" in caplog.text


def test_a_replica_has_none_of_it() -> None:
    """Its proxy has: any setting of TLS that stayed would be refused there."""
    names = [field.name for field in fields(ServerConfig) if "ssl" in field.name]
    given = ServerConfig(model="m", **{name: 1 if name == "ssl_cert_reqs" else "x" for name in names})
    assert len(names) == 6
    assert without_tls(given) == ServerConfig(model="m")
