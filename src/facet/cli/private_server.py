"""Serves a model to one command: the same app as `facet serve`, behind a socket file that only this user can open.

So a terminal command gets exactly the answers that a client of `facet serve` gets.
"""

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from facet.cli.api_client import ApiClient
from facet.config import ServerConfig
from facet.errors import EngineError
from facet.server.engine_process import EngineProcess
from facet.server.run import start_app, uvicorn_config
from facet.server.served_model import ServedModel

_LOOK_SECONDS = 0.02


@contextlib.contextmanager
def private_server(config: ServerConfig) -> Iterator[tuple[ApiClient, ServedModel]]:
    """Loads the model and serves it within a `with` block."""
    with private_socket(config) as (path, model):
        yield ApiClient.at_socket(path), model


@contextlib.contextmanager
def private_socket(config: ServerConfig) -> Iterator[tuple[Path, ServedModel]]:
    """Like `private_server`, for clients of another kind."""
    engine, model, app = start_app(config)
    with tempfile.TemporaryDirectory(prefix="facet-") as folder:
        path = Path(folder) / "server"
        settings = uvicorn_config(config, app)
        settings.uds = str(path)
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, name="facet-server", daemon=True)
        thread.start()
        try:
            _wait_until_started(server, thread)
            if not server.started:
                raise EngineError("The server inside this command did not start. Run it again with --verbose.")
            yield path, model
        finally:
            _stop(server, thread, engine)


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    """Waits until the server has started. Returns also if it failed to start."""
    while thread.is_alive() and not server.started:
        thread.join(timeout=_LOOK_SECONDS)


def _stop(server: uvicorn.Server, thread: threading.Thread, engine: EngineProcess) -> None:
    try:
        # One that is told to stop while it starts would leave its engine behind.
        _wait_until_started(server, thread)
        server.should_exit = True
        thread.join()
    except KeyboardInterrupt:
        # The user does not want to wait, but Python itself would wait for a process that is still running.
        for process_id in engine.process_ids:
            os.kill(process_id, signal.SIGKILL)
        raise
