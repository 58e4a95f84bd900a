"""Measures what the router and its proxy add to a server whose engine computes nothing.

    python -m benchmarks.router_overhead

The same server is asked directly and through the proxy, in turns. Three loads: the first tokens of single requests, the
tokens of many streams as fast as everything goes, and the same with steps of 10 ms, as a GPU might take them. All
processes share the machine with the one that makes the load; without a pause the streams are therefore a race for
cores, of which the CPU times, per request or token, show each part. With steps the machine is not full, as it should
not be in service either. On a machine with other work the shortest tenth of the times says more than their median.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.http_overhead import PROMPT, Server, load, serve, serve_facet
from benchmarks.tokenizer import made_up_tokenizer
from facet.config import ServerConfig
from facet.replicas.connection import ReplicaAddress
from facet.replicas.proxy_app import make_proxy_app
from facet.replicas.replica_set import ReplicaSet


def serve_proxy(pipe: Connection, port: int) -> None:
    replicas = ReplicaSet()
    replicas.add("0", ReplicaAddress(host="127.0.0.1", port=port))
    serve(pipe, make_proxy_app(ServerConfig(model="m"), replicas), False)


async def first_tokens(port: int, num_requests: int) -> list[float]:
    """Seconds from a request to the first bytes of its stream, one after the other."""
    body = b'{"prompt": "%b", "max_tokens": 2, "stream": true, "ignore_eos": true}' % PROMPT.encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seconds = []
    for _ in range(num_requests):
        began = time.perf_counter()
        writer.write(head + body)
        received = await reader.readuntil(b"data: ")
        seconds.append(time.perf_counter() - began)
        while not received.endswith(b"0\r\n\r\n"):
            received = (received + await reader.read(1 << 16))[-16:]
    writer.close()
    return seconds


class Costs:
    """The CPU time of two processes, from now on."""

    def __init__(self, server: Server, proxy: Server) -> None:
        self._process_ids = (server.process.pid, proxy.process.pid)
        self._before = self._seconds()

    def shown(self, count: int) -> str:
        """Microseconds for each of so many things that were asked for directly, and again through the proxy."""
        server, proxy = (after - before for after, before in zip(self._seconds(), self._before, strict=True))
        return f"{server / 2 / count * 1e6:.0f} + {proxy / count * 1e6:.0f}"

    def _seconds(self) -> list[float]:
        found = [Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2] for process_id in self._process_ids]
        return [sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK") for fields in found]


def measure(step_seconds: float, folder: str, options: argparse.Namespace, table: Table) -> None:
    server = Server.start(serve_facet, folder, False, step_seconds)
    proxy = Server.start(serve_proxy, server.port)
    ports = {"direct": server.port, "routed": proxy.port}
    pace = f"{step_seconds * 1000:g} ms steps" if step_seconds else "no pause"
    asyncio.run(first_tokens(proxy.port, 20))
    waits: dict[str, list[float]] = {name: [] for name in ports}
    costs = Costs(server, proxy)
    for _ in range(options.rounds):
        for name, port in ports.items():
            waits[name] += asyncio.run(first_tokens(port, options.requests))
    shown = costs.shown(options.rounds * options.requests)
    for name, place in (("median", 5), ("tenth", 1)):
        direct, routed = (statistics.quantiles(times, n=10)[place - 1] * 1000 for times in waits.values())
        figures = (f"{direct:.2f}", f"{routed:.2f}", f"{routed - direct:+.2f} ms")
        table.add_row(f"ms to the first token, {name}, {pace}", *figures, shown)
    for num_connections in options.connections:
        seconds: dict[str, list[float]] = {name: [] for name in ports}
        costs = Costs(server, proxy)
        for _ in range(options.rounds):
            for name, port in ports.items():
                seconds[name].append(
                    load(port, num_connections=num_connections, num_requests=2, num_tokens=options.tokens, stream=True)
                )
        num_tokens = num_connections * 2 * options.tokens
        direct, routed = (num_tokens / statistics.median(times) for times in seconds.values())
        table.add_row(
            f"tokens/s, {num_connections} streams, {pace}",
            f"{direct:,.0f}",
            f"{routed:,.0f}",
            f"{routed / direct - 1:+.1%}",
            costs.shown(options.rounds * num_tokens),
        )
    proxy.stop(False)
    server.stop(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--requests", type=int, default=100, help="single requests of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0, 10.0])
    options = parser.parse_args()
    table = Table(title="an engine that computes nothing")
    for column in ("", "direct", "routed", "difference", "CPU us, server + proxy"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        made_up_tokenizer().save(str(Path(folder) / "tokenizer.json"))
        for step_ms in options.step_ms:
            measure(step_ms / 1000, folder, options, table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
