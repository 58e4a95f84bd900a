"""TLS: checks the files that the flags name, and reads them again when they change."""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from facet.config import ServerConfig
from facet.errors import ConfigError

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=ServerConfig)
Keeper = Callable[[ssl.SSLContext], Coroutine[None, None, None]]
_Stamp = tuple[tuple[int, int, int] | None, ...]

_SECONDS_BETWEEN_LOOKS = 5.0


def without_tls(config: Settings) -> Settings:
    """The config of a server that only a proxy of ours talks to."""
    return replace(
        config,
        ssl_keyfile=None,
        ssl_certfile=None,
        ssl_ca_certs=None,
        ssl_cert_reqs=0,
        ssl_ciphers=None,
        enable_ssl_refresh=False,
    )


def check_certificates(config: ServerConfig) -> None:
    """Whether the files belong together. Asked where they are read: `facet deploy` runs on another machine."""
    if config.ssl_cert_reqs not in list(ssl.VerifyMode):
        raise ConfigError(
            f"--ssl-cert-reqs is {config.ssl_cert_reqs}, but must be 0 (clients need no certificate), 1 (those they "
            "have are checked) or 2 (they need one)."
        )
    if config.ssl_certfile is None:
        given = (
            ("--ssl-keyfile", config.ssl_keyfile),
            ("--ssl-ca-certs", config.ssl_ca_certs),
            ("--ssl-cert-reqs", config.ssl_cert_reqs),
            ("--ssl-ciphers", config.ssl_ciphers),
            ("--enable-ssl-refresh", config.enable_ssl_refresh),
        )
        if flag := next((flag for flag, value in given if value), None):
            raise ConfigError(f"{flag} needs the certificate, too. Add --ssl-certfile.")
        return
    if config.ssl_cert_reqs and config.ssl_ca_certs is None:
        raise ConfigError("--ssl-cert-reqs needs the authorities that sign clients' certificates. Add --ssl-ca-certs.")
    if config.ssl_ca_certs is not None and not config.ssl_cert_reqs:
        logger.warning("No client is asked for a certificate: --ssl-ca-certs has an effect with --ssl-cert-reqs 2.")
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config)


def keeper_of(config: ServerConfig) -> Keeper | None:
    """What reads the files again when they change, with --enable-ssl-refresh."""
    return partial(_keep_fresh, config) if config.enable_ssl_refresh else None


async def _keep_fresh(config: ServerConfig, context: ssl.SSLContext) -> None:
    """Reads certificates again when they change, until the task is cancelled. New connections get what was read last.

    A certificate and its key are replaced one after the other. Until they fit, those read before stay.
    """
    files = [path for path in (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs) if path is not None]
    seen = await asyncio.to_thread(_stamp, files)
    while True:
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
        stamp = await asyncio.to_thread(_stamp, files)
        if stamp == seen:
            continue
        seen = stamp
        try:
            # First into another context: half of a pair that does not fit would stay.
            await asyncio.to_thread(_load, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config)
            _load(context, config)  # in this thread, as connections are made of it here
        except ConfigError as error:
            logger.warning("%s Connections get the certificate that was read before.", error)
        else:
            logger.info("The files of TLS have changed: new connections get the new certificate.")


def _load(context: ssl.SSLContext, config: ServerConfig) -> None:
    assert config.ssl_certfile is not None, "without one there is no TLS"
    files = f"--ssl-certfile {config.ssl_certfile}"
    if config.ssl_keyfile is not None:
        files += f" and --ssl-keyfile {config.ssl_keyfile}"
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except OSError as error:  # those of TLS are such errors, too
        raise ConfigError(
            f"{files} cannot be used: {error.strerror or error}. Name PEM files with a certificate and its private key."
        ) from None
    try:
        if config.ssl_ca_certs is not None:
            context.load_verify_locations(config.ssl_ca_certs)
    except OSError as error:
        raise ConfigError(
            f"--ssl-ca-certs {config.ssl_ca_certs} cannot be used: {error.strerror or error}. Name a PEM file with "
            "certificates."
        ) from None
    try:
        if config.ssl_ciphers is not None:
            context.set_ciphers(config.ssl_ciphers)
    except ssl.SSLError:
        raise ConfigError(
            f"--ssl-ciphers {config.ssl_ciphers} names no cipher of this OpenSSL. `openssl ciphers -v` lists them."
        ) from None


def _stamp(paths: Sequence[str]) -> _Stamp:
    """A stamp that changes with the files. A link, as Kubernetes has it, is followed."""
    return tuple(map(_stamp_of, paths))


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
