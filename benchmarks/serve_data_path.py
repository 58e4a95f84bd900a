"""Measures what stands between clients and a replica on Ray: Serve's own proxy, or Facet's.

    python -m benchmarks.serve_data_path      # needs facet-llm[cluster]

The same server, with an engine that computes nothing, is asked directly, through Facet's proxy and through the proxy of
Ray Serve, in turns. Two loads: the first tokens of single requests, and the tokens of many streams. All processes share
the machine with the one that makes the load, so the differences are what to look at.
"""

import argparse
import asyncio
import logging
import statistics
import tempfile
from pathlib import Path

from ray import serve
from ray.serve.config import HTTPOptions
from rich.console import Console
from rich.table import Table

from benchmarks.http_overhead import Server, empty_app, load, serve_facet
from benchmarks.router_overhead import first_tokens, serve_proxy
from benchmarks.tokenizer import made_up_tokenizer
from facet.engine.ray_cluster import connect


def serve_through_ray(folder: str, port: int) -> None:
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port), logging_config={"log_level": "WARNING"})

    @serve.deployment(max_ongoing_requests=1000, logging_config={"log_level": "WARNING", "enable_access_log": False})
    @serve.ingress(lambda: empty_app(folder))
    class Ingress:
        pass

    serve.run(Ingress.bind(), name="empty")  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tokens", type=int, default=100, help="tokens of an answer")
    parser.add_argument("--requests", type=int, default=100, help="single requests of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=18000, help="for the proxy of Serve")
    options = parser.parse_args()
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    connect()
    table = Table(title="an engine that computes nothing")
    for column in ("", "direct", "Facet's proxy", "Serve's proxy"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        made_up_tokenizer().save(str(Path(folder) / "tokenizer.json"))
        direct = Server.start(serve_facet, folder, False)
        proxy = Server.start(serve_proxy, direct.port)
        serve_through_ray(folder, options.port)
        ports = [direct.port, proxy.port, options.port]
        for port in ports:
            asyncio.run(first_tokens(port, 20))
        waits: list[list[float]] = [[] for _ in ports]
        for _ in range(options.rounds):
            for port, found in zip(ports, waits, strict=True):
                found += asyncio.run(first_tokens(port, options.requests))
        table.add_row("TTFT, ms", *(f"{statistics.median(found) * 1000:.2f}" for found in waits))
        for num_connections in options.connections:
            rates: list[list[float]] = [[] for _ in ports]
            num_tokens = num_connections * 2 * options.tokens
            for _ in range(options.rounds):
                for port, found in zip(ports, rates, strict=True):
                    settings = dict(num_connections=num_connections, num_requests=2, num_tokens=options.tokens)
                    found.append(num_tokens / load(port, stream=True, **settings))
            table.add_row(
                f"tokens/s, {num_connections} streams", *(f"{statistics.median(each):,.0f}" for each in rates)
            )
        serve.shutdown()
        proxy.stop(False)
        direct.stop(False)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
