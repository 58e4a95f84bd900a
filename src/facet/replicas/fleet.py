"""Keeps the replicas of one machine running: starts them, starts again those that end, restarts them one by one."""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.exit_codes import how_it_ended
from facet.replicas.connection import ReplicaAddress
from facet.replicas.placement import Placement
from facet.replicas.replica_process import ReplicaFailedError, ReplicaProcess
from facet.replicas.replica_set import ReplicaSet
from facet.replicas.shared_adapters import SharedAdapters
from facet.server.certificates import without_tls

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS = 60.0
_SECONDS_TO_END = 10.0  # after its requests are done


@dataclass(eq=False, slots=True)
class _Post:
    """The place of one replica, which several processes may fill one after the other."""

    name: str
    placement: Placement
    loading: asyncio.Lock  # shared by those that share GPUs
    process: ReplicaProcess | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)
    is_restarting: bool = False  # its end is wanted, and another start


class Fleet:
    """All replicas of this machine. A fleet has to be stopped, also where its start failed."""

    def __init__(
        self,
        config: ServerConfig,
        replicas: ReplicaSet,
        placements: Sequence[Placement],
        folder: Path,
        *,
        adapters: SharedAdapters | None = None,
        target: Callable[..., None] | None = None,
    ) -> None:
        """`folder` is for sockets, and only this user may open it. `adapters`: those of all replicas, for which others
        ask, too. `target`: what replicas run instead of a server."""
        self._config = config
        self._replicas = replicas
        self._adapters = adapters or SharedAdapters(replicas)
        self._folder = folder
        self._target = target
        loading: dict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._posts = [
            _Post(str(number), placement, loading[placement.gpus or number])
            for number, placement in enumerate(placements)
        ]
        self._keepers: list[asyncio.Task[None]] = []
        self._roll: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when all replicas can answer, and looks after them from then on."""
        # The first alone: what is wrong is said once, and kernels are compiled once.
        await self._start(self._posts[0], is_first=True)
        try:
            async with asyncio.TaskGroup() as starts:
                for post in self._posts[1:]:
                    starts.create_task(self._start(post))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        self._keepers = [asyncio.create_task(self._keep(post)) for post in self._posts]

    def restart(self) -> None:
        """Restarts replicas one after the other, each once its requests are done. Others take what comes meanwhile."""
        if self._roll is None or self._roll.done():
            self._roll = asyncio.create_task(self._restart_all())

    async def stop(self) -> None:
        tasks = [*self._keepers, *filter(None, [self._roll])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        processes = [post.process for post in self._posts if post.process is not None]
        for process in processes:
            process.terminate()
        ends = [asyncio.create_task(process.wait_until_ended()) for process in processes]
        if ends:
            _, late = await asyncio.wait(ends, timeout=_SECONDS_TO_END)
            if late:
                for process in processes:
                    process.kill()
                await asyncio.wait(late)
        for post in self._posts:
            post.process = None

    async def _start(self, post: _Post, *, is_first: bool = False) -> None:
        """Starts a replica; returns when it can answer. Those that share GPUs load one after the other: each measures
        what is free."""
        async with post.loading:
            socket = str(self._folder / post.name)
            config = replace(without_tls(self._config), uds=socket, root_path=None,
                             data_parallel_size=1, gpu_memory_utilization=self._utilization(post))  # fmt: skip
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(post.placement.gpus)} if post.placement.gpus else {}
            post.process = ReplicaProcess(post.name, config, environment, is_first=is_first, target=self._target)
            try:
                await post.process.wait_until_listening()
            except ConfigError:
                await post.process.wait_until_ended()
                post.process = None
                raise
            except ReplicaFailedError:
                post.process = None
                raise
            address = ReplicaAddress(socket=socket)
            async with self._adapters.joining(post.name, address):
                post.is_ready.set()
                self._replicas.add(post.name, address)

    def _utilization(self, post: _Post) -> float:
        """The share of a GPU's memory up to which a replica may fill it: its own and those of the replicas that are
        there already."""
        share = self._config.gpu_memory_utilization
        if not post.placement.gpus:
            return share
        num_others = sum(other.is_ready.is_set() and other.placement == post.placement for other in self._posts)
        return share * (1 + num_others)

    async def _keep(self, post: _Post) -> None:
        num_failures = 0
        while True:
            if post.process is not None:
                began = time.monotonic()
                code = await post.process.wait_until_ended()
                post.process = None
                post.is_ready.clear()
                self._replicas.remove(post.name)
                what = how_it_ended(code)
                if time.monotonic() - began > _LONGEST_PAUSE_SECONDS:
                    num_failures = 0
            if not post.is_restarting:
                pause = min(_LONGEST_PAUSE_SECONDS, 2.0**num_failures)
                num_failures += 1
                logger.error("Replica %s %s; another starts in %g s.", post.name, what, pause)
                await asyncio.sleep(pause)
            post.is_restarting = False
            try:
                await self._start(post)
                logger.info("Replica %s is ready.", post.name)
            except (ConfigError, ReplicaFailedError) as error:
                what = f"did not start ({error})"

    async def _restart_all(self) -> None:
        logger.info("Restarting all replicas, one after the other.")
        for post in self._posts:
            await post.is_ready.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.shutdown_timeout):
                    await self._replicas.drain(post.name)
            if post.process is not None:
                post.is_restarting = True
                post.is_ready.clear()
                post.process.terminate()
            await post.is_ready.wait()
        logger.info("All replicas have been restarted.")
