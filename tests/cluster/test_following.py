"""A proxy's replicas are those that Ray Serve runs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from facet.cluster import following
from facet.cluster.following import Following
from facet.cluster.replica import ReplicaStatus
from facet.replicas.connection import ReplicaAddress
from facet.replicas.replica_set import ReplicaSet
from facet.router import RouteKey


def status(name: str, num_requests: int = 0) -> ReplicaStatus:
    return ReplicaStatus(name, ReplicaAddress(host="10.0.0.1", port=1, secret="s"), num_requests)


def test_replicas_come_and_go_and_answers_go_on_to_their_end() -> None:
    async def run() -> None:
        replicas = ReplicaSet()
        follower = Following(replicas)
        follower.apply([status("a"), status("b", num_requests=5)])
        assert replicas.router.ready == ["a", "b"]
        assert replicas.router.load_of("b") == 5, "requests of other proxies count"
        route = replicas.router.begin(RouteKey(), "a")
        follower.apply([status("b"), status("c")])
        await asyncio.sleep(0)
        assert replicas.router.ready == ["b", "c"]
        assert "a" in replicas.clients, "it still answers"
        replicas.router.end(route)
        replicas.note_end("a")
        await asyncio.sleep(0.01)
        assert set(replicas.clients) == {"b", "c"}
        follower.apply([])
        follower.apply([status("b")])  # back before it was removed
        await asyncio.sleep(0.01)
        assert replicas.router.ready == ["b"]
        assert set(replicas.clients) == {"b"}

    asyncio.run(run())


class Handle:
    """Of a deployment: what its replicas answer, one look after the other."""

    def __init__(self, *answers: Sequence[object] | Exception) -> None:
        self._answers = list(answers)

    def broadcast(self, method: str) -> "Handle":
        assert method == "status"
        return self

    async def results_async(self, **_: Any) -> Sequence[object]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_was_known_stays_while_serve_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_SECONDS_BETWEEN_LOOKS", 0.001)

    async def run() -> None:
        replicas = ReplicaSet()
        handle = Handle([status("a")], TimeoutError(), [status("a"), RuntimeError("a replica died")])
        task = asyncio.create_task(Following(replicas).follow(handle))
        await asyncio.sleep(0.05)
        assert replicas.router.ready == ["a"]
        task.cancel()

    asyncio.run(run())
