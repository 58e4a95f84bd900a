"""The replicas that there are: how to reach each, and the router that chooses among them.

Whoever starts and stops replicas, on this machine or on others, tells it here; the proxy asks. All of it belongs to one
event loop.
"""

import asyncio
from collections.abc import Callable, Mapping

from facet.replicas.connection import ReplicaAddress, ReplicaClient
from facet.router import Router, RouterLimits


class ReplicaSet:
    def __init__(self, limits: RouterLimits | None = None) -> None:
        self.router = Router(limits)
        self._clients: dict[str, ReplicaClient] = {}
        self._changed = asyncio.Event()

    @property
    def clients(self) -> Mapping[str, ReplicaClient]:
        """The clients of all replicas that run, draining ones included, by name."""
        return self._clients

    def add(self, name: str, address: ReplicaAddress) -> None:
        """Adds a replica that has just started and can answer."""
        self._clients[name] = ReplicaClient(address)
        self.router.add(name)
        self._tell()

    async def drain(self, name: str) -> None:
        """Drains a replica: it gets nothing new. Returns once it has nothing left to do."""
        self.router.drain(name)
        await self._wait_for(lambda: self.router.num_running(name) == 0)

    def remove(self, name: str) -> None:
        """Removes a replica that has ended."""
        self.router.remove(name)
        if (client := self._clients.pop(name, None)) is not None:
            client.close()
        self._tell()

    async def close(self) -> None:
        """Closes all connections: nobody is asked any more."""
        for name in list(self._clients):
            self.remove(name)
        await asyncio.sleep(0)  # connections are closed by the next turn of the loop

    async def wait_until_ready(self, timeout: float) -> bool:
        """Whether some replica takes requests, or does within that time."""
        try:
            async with asyncio.timeout(timeout):
                await self._wait_for(lambda: bool(self.router.ready))
        except TimeoutError:
            return False
        return True

    def note_end(self, name: str) -> None:
        """Takes note that a request has ended there: whoever drains the replica may have been waiting for it."""
        if not self.router.is_ready(name):
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()
