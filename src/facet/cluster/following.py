"""Keeps a proxy's replicas those that Ray Serve runs: asks every second, adds new ones, drains those that are gone."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from facet.cluster.replica import ReplicaStatus
from facet.replicas.replica_set import ReplicaSet

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_ANSWER = 10.0


class Following:
    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas
        self._known: set[str] = set()
        self._leaving: dict[str, asyncio.Task[None]] = {}

    def apply(self, found: Iterable[ReplicaStatus]) -> None:
        """Applies a list of replicas: these are all that take requests now."""
        now = {status.name: status for status in found}
        for name in self._known - now.keys():
            logger.info("Replica %s takes no more requests.", name)
            self._leaving[name] = asyncio.create_task(self._leave(name))
        for name, status in now.items():
            if name not in self._known:
                logger.info("Replica %s takes requests.", name)
                if (leaving := self._leaving.pop(name, None)) is not None:
                    leaving.cancel()  # it is back
                self._replicas.add(name, status.address)
            self._replicas.router.report_load(name, status.num_requests)
        self._known = set(now)

    async def _leave(self, name: str) -> None:
        """Lets a replica leave: its answers go on to their end, but it gets nothing new."""
        await self._replicas.drain(name)
        self._replicas.remove(name)
        del self._leaving[name]

    async def follow(self, handle: Any) -> None:
        """`handle`: of the deployment. Never returns."""
        while True:
            try:
                asked = handle.broadcast("status")
                answers = await asked.results_async(timeout_s=_SECONDS_TO_ANSWER, return_exceptions=True)
            except Exception as error:  # whatever Ray or Serve raise while they restart: what was known stays
                logger.debug("Replicas could not be asked: %s", error)
            else:
                self.apply(answer for answer in answers if isinstance(answer, ReplicaStatus))
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
