"""The client of one replica: connections are used again, and slow readers hold a stream back."""

import asyncio
from collections.abc import Callable

import pytest

from facet.replicas.connection import ReplicaAddress, ReplicaClient, ReplicaLostError

LARGE = 8 << 20


class Upstream(asyncio.Protocol):
    """Answers every request as it is told."""

    def __init__(self, answer: Callable[[asyncio.Transport], None]) -> None:
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answer(self.transport)


def test_connections_are_used_again_also_after_the_server_closed_one() -> None:
    used: list[asyncio.Transport] = []

    def answer(transport: asyncio.Transport) -> None:
        used.append(transport)
        transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        if len(used) == 2:
            transport.close()  # without saying so

    async def ask() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Upstream(answer), "127.0.0.1", 0)
        async with server:
            client = ReplicaClient(ReplicaAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1]))
            for _ in range(4):
                assert await client.ask("/health") == (200, b"ok")
            client.close()
            await asyncio.sleep(0)
        with pytest.raises(ReplicaLostError, match="cannot connect"):
            await client.ask("/health")

    asyncio.run(ask())
    assert used[0] is used[1] is not used[2] is used[3]


def test_a_request_that_crosses_the_end_of_an_idle_connection_is_sent_once_more() -> None:
    used: list[asyncio.Transport] = []

    def answer(transport: asyncio.Transport) -> None:
        if transport in used:
            transport.close()  # it was about to, when this request came
        else:
            transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        used.append(transport)

    async def ask() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Upstream(answer), "127.0.0.1", 0)
        async with server:
            client = ReplicaClient(ReplicaAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1]))
            # Three connections are idle. One of them is tried, then a new one.
            assert await asyncio.gather(*(client.ask("/health") for _ in range(3))) == [(200, b"ok")] * 3
            assert await client.ask("/health") == (200, b"ok")
            client.close()
            await asyncio.sleep(0)

    asyncio.run(ask())
    assert len(used) == 5
    assert len(set(used)) == 4
    assert used[3] in used[:3]


def test_a_replica_that_dies_over_a_request_does_not_get_it_a_third_time() -> None:
    num_requests = 0

    def answer(transport: asyncio.Transport) -> None:
        nonlocal num_requests
        num_requests += 1
        if num_requests > 3:
            transport.close()
        else:
            transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    async def ask() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Upstream(answer), "127.0.0.1", 0)
        async with server:
            client = ReplicaClient(ReplicaAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1]))
            await asyncio.gather(*(client.ask("/health") for _ in range(3)))
            with pytest.raises(ReplicaLostError, match="the connection was closed"):
                await client.ask("/health")
            client.close()
            await asyncio.sleep(0)

    asyncio.run(ask())
    assert num_requests == 5


def test_a_slow_reader_holds_back_its_stream() -> None:
    written: list[asyncio.Transport] = []

    def answer(transport: asyncio.Transport) -> None:
        written.append(transport)
        transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LARGE + bytes(LARGE))

    async def ask() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Upstream(answer), "127.0.0.1", 0)
        async with server:
            client = ReplicaClient(ReplicaAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1]))
            response = await client.send(b"GET / HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0.2)
            assert response._connection._num_buffered < LARGE / 4
            assert written[0].get_write_buffer_size() > 0
            assert len(await response.read_all()) == LARGE
            client.close()
            await asyncio.sleep(0)

    asyncio.run(ask())
