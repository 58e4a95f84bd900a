"""Polls of the engine: asked once for all who want to know, and never waited for in vain."""

import asyncio

from facet.errors import EngineDeadError, EngineError
from facet.server.polls import Poll


class Asked:
    """A poll and how often the engine was asked."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.poll: Poll[str] = Poll(self._send)

    def _send(self) -> None:
        self.num_sent += 1


def test_everybody_who_waits_gets_the_message() -> None:
    async def run() -> tuple[list[str | None], int]:
        asked = Asked()
        waiting = [asyncio.create_task(asked.poll.ask(timeout=5)) for _ in range(3)]
        await asyncio.sleep(0)
        asked.poll.deliver("now")
        return await asyncio.gather(*waiting), asked.num_sent

    assert asyncio.run(run()) == (["now"] * 3, 3)


def test_a_recent_message_or_one_on_its_way_will_do() -> None:
    async def run() -> None:
        asked = Asked()
        waiting = [asyncio.create_task(asked.poll.ask(timeout=5, max_age=60)) for _ in range(3)]
        await asyncio.sleep(0)
        asked.poll.deliver("first")
        assert await asyncio.gather(*waiting) == ["first"] * 3
        assert await asked.poll.ask(timeout=5, max_age=60) == "first"
        assert asked.num_sent == 1
        later = asyncio.create_task(asked.poll.ask(timeout=5, max_age=1e-9))
        await asyncio.sleep(0)
        asked.poll.deliver("second")
        assert (await later, asked.num_sent) == ("second", 2)

    asyncio.run(run())


def test_without_a_message_the_last_one_counts() -> None:
    async def run() -> None:
        asked = Asked()
        assert await asked.poll.ask(timeout=0.01) is None
        asked.poll.deliver("last")
        assert await asked.poll.ask(timeout=0.01) == "last"
        waiting = asyncio.create_task(asked.poll.ask(timeout=5))
        await asyncio.sleep(0)
        asked.poll.fail(EngineDeadError("gone"))
        assert await waiting == "last"

    asyncio.run(run())


def test_an_engine_that_takes_no_question() -> None:
    def refuse() -> None:
        raise EngineError("overloaded")

    poll: Poll[str] = Poll(refuse)
    poll.deliver("last")
    assert asyncio.run(poll.ask(timeout=5)) == "last"
