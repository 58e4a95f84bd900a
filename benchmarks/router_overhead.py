"""Measures what the router and its proxy add to a server whose engine computes nothing.

    python benchmarks/router_overhead.py

The same server is asked directly and through the proxy, in turns. Three loads: the first tokens of single requests, the
tokens of many streams as fast as everything goes, and the same with steps of 10 ms, as a GPU might take them. All
processes share the machine with the one that makes the load; as fast as everything goes is therefore a race for cores,
of which the CPU times show each part. With steps the machine is not full, as it should not be in service either.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from http_overhead import PROMPT, Server, load, serve, serve_facet
from rich.console import Console
from rich.table import Table
from tokenizer import made_up_tokenizer

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


def cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(step_seconds: float, folder: str, options: argparse.Namespace, table: Table) -> None:
    server = Server.start(serve_facet, folder, False, step_seconds)
    proxy = Server.start(serve_proxy, server.port)
    ports = {"direct": server.port, "routed": proxy.port}
    pace = f"steps of {step_seconds * 1000:g} ms" if step_seconds else "as fast as possible"
    asyncio.run(first_tokens(proxy.port, 20))
    waits: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(options.rounds):
        for name, port in ports.items():
            waits[name] += asyncio.run(first_tokens(port, options.requests))
    direct, routed = (statistics.median(times) * 1000 for times in waits.values())
    table.add_row(f"TTFT, ms, {pace}", f"{direct:.2f}", f"{routed:.2f}", f"+{routed - direct:.2f} ms", "")
    for num_connections in options.connections:
        seconds: dict[str, list[float]] = {name: [] for name in ports}
        before = [cpu_seconds(one.process.pid) for one in (server, proxy)]
        for _ in range(options.rounds):
            for name, port in ports.items():
                seconds[name].append(
                    load(port, num_connections=num_connections, num_requests=2, num_tokens=options.tokens, stream=True)
                )
        num_tokens = num_connections * 2 * options.tokens
        shares = [cpu_seconds(one.process.pid) - cpu for one, cpu in zip((server, proxy), before, strict=True)]
        # Both ways pass the server, one of them the proxy.
        costs = [share / num_tokens / options.rounds / way * 1e6 for share, way in zip(shares, (2, 1), strict=True)]
        direct, routed = (num_tokens / statistics.median(times) for times in seconds.values())
        table.add_row(
            f"tokens/s, {num_connections} streams, {pace}",
            f"{direct:,.0f}",
            f"{routed:,.0f}",
            f"{routed / direct - 1:+.1%}",
            " + ".join(f"{cost:.0f}" for cost in costs),
        )
    proxy.stop(False)
    server.stop(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--requests", type=int, default=100, help="single requests of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    table = Table(title="an engine that computes nothing")
    for column in ("", "direct", "routed", "difference", "CPU us per token, server + proxy"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        made_up_tokenizer().save(str(Path(folder) / "tokenizer.json"))
        for step_seconds in (0.0, 0.01):
            measure(step_seconds, folder, options, table)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
