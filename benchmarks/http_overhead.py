"""Measures the cost of the front end: requests and streamed tokens per second with an engine that computes nothing.

    python -m benchmarks.http_overhead                      # 64 and 256 connections
    python -m benchmarks.http_overhead --profile            # and where the server's time goes

For comparison, the same run measures a bare Starlette app that streams as many constant events of the same size. The
engine is a process of its own behind the real messages, as in `facet serve`; only its steps are empty: every running
request gets a token in every step. The load comes from a third process. All of them share the machine, so the figures
are those of three processes on so many cores, and the ratio is what to look at.
"""

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import os
import pstats
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import facet.engine.rank_processes
from benchmarks.empty_engine import STEP_SECONDS, run_empty_engine
from benchmarks.tokenizer import made_up_tokenizer
from facet.config import EngineConfig, ServerConfig
from facet.prompts import read_prompt_files
from facet.server.app import make_app
from facet.server.engine_process import EngineProcess
from facet.server.served_model import make_served_model

PROMPT = "the weather in paris is clear and the wind is light " * 8
CHUNK = (  # an event as Facet sends it
    b'data: {"id":"cmpl-00000000000000000000000000000000","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"text":"abc","logprobs":null,"finish_reason":null}],"object":"text_completion"}\n\n'
)


def serve_facet(pipe: Connection, folder: str, profile: bool, step_seconds: float = 0.0) -> None:
    os.environ[STEP_SECONDS] = str(step_seconds)
    serve(pipe, empty_app(folder), profile)


def empty_app(folder: str) -> Starlette:
    """The server, with an engine that computes nothing."""
    facet.engine.rank_processes.run_rank = run_empty_engine
    config = ServerConfig(model=folder, served_model_name=("m",), disable_log_stats=True)
    engine = EngineProcess(EngineConfig(model=folder))
    return make_app(config, engine, make_served_model(config, read_prompt_files(config), engine.info))


def serve_bare(pipe: Connection, chunk: bytes, profile: bool) -> None:
    async def stream(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield chunk

    async def answer(request: HttpRequest) -> Response:
        body = json.loads(await request.body())
        if body.get("stream"):
            return StreamingResponse(stream(body["max_tokens"]), media_type="text/event-stream")
        return JSONResponse({"choices": [{"text": "x"}]})

    serve(pipe, Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])]), profile)


def serve(pipe: Connection, app: Starlette, profile: bool) -> None:
    """Until the pipe says something. The profile comes back through it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="auto", ws="none"))

    async def run() -> None:
        asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: setattr(server, "should_exit", True))
        await server.serve(sockets=[listener])

    pipe.send(listener.getsockname()[1])
    profiler = cProfile.Profile() if profile else None
    if profiler is not None:
        profiler.enable()
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())
    if profiler is not None:
        profiler.disable()
        pipe.send(shares(pstats.Stats(profiler)))


def shares(stats: pstats.Stats) -> list[tuple[str, float]]:
    """Seconds by part of the program, the largest first."""
    parts: dict[str, float] = {}
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        place = Path(file)
        if "facet" in place.parts:
            part = "/".join(place.parts[place.parts.index("facet") :][-2:])
        elif "site-packages" in place.parts:
            part = place.parts[place.parts.index("site-packages") + 1]
        else:
            part = f"{name}" if file == "~" else f"python: {place.name}"
        parts[part] = parts.get(part, 0.0) + own
    return sorted(parts.items(), key=lambda item: -item[1])


@dataclass
class Server:
    process: Any
    pipe: Connection
    port: int

    @classmethod
    def start(cls, target: Callable[..., None], *arguments: Any) -> "Server":
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, *arguments))
        process.start()
        return cls(process, ours, ours.recv())

    def stop(self, profile: bool) -> list[tuple[str, float]]:
        self.pipe.send("stop")
        found = self.pipe.recv() if profile else []
        self.process.join()
        return list(found)


async def one(port: int, body: bytes, num_requests: int) -> int:
    """One connection, one request after the other. How many bytes came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    num_bytes = 0
    for _ in range(num_requests):
        writer.write(head + body)
        header = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in header.split(b"\r\n")[0], header
        lowered = header.lower()
        if b"content-length: " in lowered:
            length = int(lowered.split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            num_bytes += length
            continue
        last = b""
        while not last.endswith(b"0\r\n\r\n"):
            piece = await reader.read(1 << 18)
            assert piece, "the connection was closed"
            num_bytes += len(piece)
            last = (last + piece)[-16:]
    writer.close()
    return num_bytes


def load(port: int, *, num_connections: int, num_requests: int, num_tokens: int, stream: bool) -> float:
    """Seconds."""
    body = json.dumps(
        {"prompt": PROMPT, "max_tokens": num_tokens, "stream": stream, "ignore_eos": True, "temperature": 0}
    ).encode()

    async def everything() -> None:
        await asyncio.gather(*(one(port, body, num_requests) for _ in range(num_connections)))

    start = time.perf_counter()
    asyncio.run(everything())
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a streamed answer")
    parser.add_argument("--requests", type=int, default=512, help="requests of a round, over all connections")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        made_up_tokenizer().save(str(Path(folder) / "tokenizer.json"))
        servers = {
            "Facet": Server.start(serve_facet, folder, options.profile),
            "bare Starlette": Server.start(serve_bare, CHUNK, options.profile),
        }
        table = Table(title=f"an engine that computes nothing; streams of {options.tokens} tokens")
        for column in ("connections", "", "Facet", "bare Starlette", "ratio"):
            table.add_column(column, justify="left" if not column else "right")
        for num_connections in options.connections:
            for stream, what in ((False, "requests/s"), (True, "streamed tokens/s")):
                num_requests = max(1, options.requests // num_connections)
                num_tokens = options.tokens if stream else 1
                settings = dict(num_connections=num_connections, num_requests=num_requests, num_tokens=num_tokens)
                seconds: dict[str, list[float]] = {name: [] for name in servers}
                for _ in range(options.rounds):
                    for name, server in servers.items():
                        seconds[name].append(load(server.port, stream=stream, **settings))
                work = num_connections * num_requests * num_tokens
                rates = {name: work / statistics.median(times) for name, times in seconds.items()}
                ratio = rates["Facet"] / rates["bare Starlette"]
                row = [f"{rate:,.0f}" for rate in rates.values()]
                table.add_row(str(num_connections), what, *row, f"{ratio:.2f}")
        profiles = {name: server.stop(options.profile) for name, server in servers.items()}
    console.print(table)
    for name, parts in profiles.items() if options.profile else ():
        total = sum(seconds for _, seconds in parts)
        console.print(f"{name}: " + ", ".join(f"{part} {own / total:.0%}" for part, own in parts[:14]), highlight=False)


if __name__ == "__main__":
    main()
