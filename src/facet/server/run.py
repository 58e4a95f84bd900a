"""`facet serve`, from flags to the last answer: starts the engine, listens, drains, stops."""

import contextlib
import errno
import ipaddress
import logging
import math
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette

from facet.config import ServerConfig, engine_config
from facet.engine.number_checks import check_numbers
from facet.engine.rank_processes import RankProcesses
from facet.engine.start_times import start_line
from facet.errors import ConfigError
from facet.kv_dtypes import parse_kv_cache_dtype
from facet.prompts import read_prompt_files
from facet.server.adapter_loading import check_adapters
from facet.server.app import make_app
from facet.server.certificates import check_certificates, keeper_of
from facet.server.draining import DrainingServer
from facet.server.engine_process import EngineProcess
from facet.server.open_files import raise_limit_of_files
from facet.server.request_deadline import RequestDeadlineProtocol
from facet.server.served_model import ServedModel, make_served_model
from facet.server.traces import check_traces

logger = logging.getLogger(__name__)

Settings = TypeVar("Settings", bound=ServerConfig)

KEYS = ("FACET_API_KEY", "VLLM_API_KEY")
_PARSERS = ("auto", "gemma4", "gemma3", "gemma", "functiongemma")


def serve(
    config: ServerConfig,
    on_listening: Callable[[str], None] = logger.info,
    *,
    show_progress: bool = True,
    ranks: RankProcesses | None = None,
) -> int:
    """Serve until told to stop. `on_listening` is called with a greeting once clients can connect.

    `ranks`: processes of the engine that are there already.
    """
    config = with_key_of_environment(config, os.environ)
    check_accepted_flags(config)
    signal.signal(signal.SIGTERM, _leave)  # while loading; the server has its own way once it listens
    with listening(config) as listener:  # before minutes are spent on loading a model that could not be reached
        engine, model, app = start_app(config, show_progress=show_progress, ranks=ranks)
        for line in engine.info.lines:
            logger.info("%s", line)
        logger.debug("%s", start_line(engine.info.start_times))
        warn_of_strangers(config)
        greet = partial(on_listening, greeting(config, model.names, listener))
        server = DrainingServer(uvicorn_config(config, app), lambda: engine.is_dead, greet, keeper_of(config))
        server.run(sockets=[listener])
    return 0 if server.started and not engine.is_dead else 1


@contextlib.contextmanager
def listening(config: ServerConfig) -> Iterator[socket.socket]:
    """The socket to listen on."""
    check_certificates(config)
    raise_limit_of_files()
    with contextlib.closing(bind(config)) as listener:
        try:
            yield listener
        finally:
            if config.uds is not None:
                with contextlib.suppress(OSError):  # somebody was faster; the next server replaces what is left
                    os.unlink(config.uds)


def warn_of_strangers(config: ServerConfig) -> None:
    if not config.api_key and config.uds is None and not is_loopback(config.host):
        deeds = "use the model and load adapters" if config.allowed_lora_path else "use the model"
        logger.info("Anyone who can reach this address can %s: no API key is set (--api-key, %s).", deeds, KEYS[0])


def greeting(config: ServerConfig, names: Sequence[str], listener: socket.socket) -> str:
    return f"Serving {', '.join(names)} on {_address(config, listener)}"


def with_key_of_environment(config: Settings, environment: Mapping[str, str]) -> Settings:
    """A key that stands in the environment, unless flags name some: a command line can be read by others."""
    key = next((environment[name] for name in KEYS if environment.get(name)), None)
    return config if config.api_key or key is None else replace(config, api_key=(key,))


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def start_app(
    config: ServerConfig, *, show_progress: bool = True, ranks: RankProcesses | None = None
) -> tuple[EngineProcess, ServedModel, Starlette]:
    """Loads the model and makes the app, which owns the engine."""
    check_adapters(config)
    files = read_prompt_files(config)
    of_engine = engine_config(config, files.folder)
    if config.allowed_lora_path:  # nothing could be loaded without room for it
        of_engine = replace(of_engine, enable_lora=True)
    engine = EngineProcess(of_engine, show_progress=show_progress, ranks=ranks)
    try:
        model = make_served_model(config, files, engine.info)
        return engine, model, make_app(config, engine, model)
    except BaseException:
        engine.close()
        raise


def _leave(number: int, frame: object) -> None:
    """Leaves by an exception, so that the engine process is ended on the way out."""
    raise SystemExit(128 + number)


def _address(config: ServerConfig, listener: socket.socket) -> str:
    if config.uds is not None:
        return f"unix:{config.uds}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{'https' if config.ssl_certfile else 'http'}://{host}:{listener.getsockname()[1]}"


def bind(config: ServerConfig) -> socket.socket:
    """The socket to listen on, taken before a model is loaded."""
    if config.uds is not None:
        return _bind_file(config.uds)
    listener = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {config.host}:{config.port}: {error.strerror}. Choose another --port or --host."
        ) from None
    listener.set_inheritable(False)
    return listener


def _bind_file(path: str) -> socket.socket:
    """A Unix socket. A file of a server that has ended is replaced; one that answers is not."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode) and listener.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)
    except OSError:
        pass  # there is nothing yet, or nothing that we may look at: binding says which
    try:
        listener.close()
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
    except OSError as error:
        listener.close()
        raise ConfigError(f"Cannot listen on {path}: {error.strerror or error}. Choose another --uds.") from None
    listener.set_inheritable(False)
    return listener


def uvicorn_config(config: ServerConfig, app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=partial(RequestDeadlineProtocol, timeout=config.request_timeout),  # type: ignore[arg-type]
        log_level=config.uvicorn_log_level,
        access_log=config.uvicorn_log_level in ("info", "debug", "trace"),
        log_config=None,
        root_path=config.root_path or "",
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=config.ssl_cert_reqs,
        ssl_ciphers=config.ssl_ciphers,
        timeout_keep_alive=config.timeout_keep_alive,
        timeout_graceful_shutdown=max(1, round(config.shutdown_timeout)),
        server_header=False,
        lifespan="on",
        ws="none",
    )


def check_accepted_flags(config: ServerConfig) -> None:
    """Refuses flag values that Facet cannot honour."""
    if not config.model:
        raise ConfigError("No model was named. Give a folder or a name on the hub (owner/name): facet serve MODEL.")
    if not 0 <= config.port < 65536:
        raise ConfigError(f"--port is {config.port}, but must be from 0 to 65535.")
    if config.enable_sleep_mode and config.data_parallel_size > 1:
        raise ConfigError(
            "--enable-sleep-mode works with --data-parallel-size 1 only: each replica would sleep by itself. Leave one "
            "of the two out."
        )
    check_adapters(config)
    check_numbers(config)
    parse_kv_cache_dtype(config.kv_cache_dtype)  # refused now rather than after loading
    if config.otlp_traces_endpoint is not None:
        check_traces(config.otlp_traces_endpoint)
    for flag, value in (
        ("--tool-call-parser", config.tool_call_parser),
        ("--reasoning-parser", config.reasoning_parser),
    ):
        if value not in _PARSERS:
            raise ConfigError(f"{flag} {value} is unknown. Leave it out: the model's own format is used.")
    for name in ("max_waiting_requests", "max_request_bytes", "num_tokenizer_threads"):
        if getattr(config, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(config, name)}, but must be 1 or more.")
    if config.max_logprobs < -1:
        raise ConfigError(f"--max-logprobs is {config.max_logprobs}, but must be 0 or more; -1: no limit.")
    if not config.request_timeout > 0:
        raise ConfigError(f"--request-timeout is {config.request_timeout:g}, but must be more than 0.")
    if config.timeout_keep_alive < 1:
        raise ConfigError(f"--timeout-keep-alive is {config.timeout_keep_alive}, but must be 1 or more.")
    if not 0 <= config.shutdown_timeout < math.inf:
        raise ConfigError(f"--shutdown-timeout is {config.shutdown_timeout:g}, but must be a number of seconds from 0.")
    if "" in (config.served_model_name or ()):
        raise ConfigError("--served-model-name has an empty name. Remove it.")
    if config.uds == "":
        raise ConfigError("--uds is empty. Name a file, or leave it out to listen on --host and --port.")
    _check_keys(config.api_key or ())


def _check_keys(keys: Sequence[str]) -> None:
    """An empty key would let everyone in who sends none; one with a line break at its end, nobody."""
    for number, key in enumerate(keys, start=1):
        if not key.strip():
            raise ConfigError(
                f"API key {number} is empty, so that no request would need one. Give a key, or leave out --api-key if "
                "everyone may use the model."
            )
        if key != key.strip() or not key.isprintable():
            raise ConfigError(
                f"API key {number} has a blank, a line break or the like, which no client can send. Remove it; a file "
                "with a secret often ends with a line break."
            )
