"""One start of a replica on this machine: `facet serve` in a child process, on a socket that only its user can open."""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from facet.config import ServerConfig
from facet.errors import ConfigError, FacetError, UserError
from facet.exit_codes import how_it_ended
from facet.server.run import serve


class ReplicaFailedError(FacetError):
    """A replica ended before it could answer."""


@dataclass(frozen=True, slots=True)
class _Listening:
    """The replica's first message: clients can connect."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """What the user has to change before the replica can start."""

    reason: str


class ReplicaProcess:
    def __init__(
        self,
        name: str,
        config: ServerConfig,
        environment: Mapping[str, str],
        *,
        is_first: bool,
        target: Callable[..., None] | None = None,
    ) -> None:
        """`is_first`: the one that shows how loading goes and what it found, which is the same for all of them.
        `target`: what the process runs instead of `run_replica`."""
        spawn = multiprocessing.get_context("spawn")
        self.name = name
        self._pipe, theirs = spawn.Pipe()
        level = logging.getLogger().getEffectiveLevel()
        self._process = spawn.Process(
            target=target or run_replica,
            args=(name, config, dict(environment), theirs, level, is_first),
            name=f"facet-replica-{name}",
        )
        self._process.start()
        theirs.close()

    async def wait_until_listening(self) -> None:
        """Raises ConfigError for what a user can mend, ReplicaFailedError for the rest."""
        await _readable(self._pipe.fileno())
        try:
            message = self._pipe.recv()
        except EOFError:
            code = await self.wait_until_ended()
            raise ReplicaFailedError(f"Replica {self.name} {how_it_ended(code)}, before it could answer.") from None
        if isinstance(message, _Refused):
            raise ConfigError(message.reason)

    async def wait_until_ended(self) -> int:
        await _readable(self._process.sentinel)
        self._process.join()
        self._pipe.close()
        return self._process.exitcode or 0

    def terminate(self) -> None:
        """Asks the replica to finish its requests and end."""
        if self._process.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        """Kills the replica; its engine notices and ends too."""
        if self._process.is_alive():
            self._process.kill()


async def _readable(file: int) -> None:
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(file, is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(file)


def run_replica(
    name: str, config: ServerConfig, environment: Mapping[str, str], parent: Connection, level: int, is_first: bool
) -> None:
    """What the child process runs."""
    os.setsid()  # Ctrl-C is for the parent, which stops its replicas when their requests are done
    os.environ.update(environment)
    logging.basicConfig(level=level, format=f"replica {name}: %(message)s")
    if not is_first:
        logging.getLogger("facet.server.run").setLevel(logging.WARNING)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    try:
        code = serve(config, lambda greeting: parent.send(_Listening()), show_progress=is_first)
    except UserError as error:
        parent.send(_Refused(str(error)))
        code = 2
    sys.exit(code)


def _end_with_parent(parent: Connection) -> None:
    """Ends the replica with its parent: nobody could reach a replica whose parent is gone."""
    try:
        parent.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
