"""Measures how many streamed tokens per second `facet bench serve` can receive from a server that computes nothing.

    python -m benchmarks.bench_client                       # 16, 64 and 256 requests in flight
    python -m benchmarks.bench_client --pace 20000          # the server sends so many tokens/s and no more
    python -m benchmarks.bench_client --profile             # and where the client's time goes

The server is a process of its own: it answers every request with events out of a constant, one chunk and one write for
each token, as servers send them. It hands out a token to every stream in turn, so that pieces of many streams arrive
mixed, as from a real one. Both share the machine, so the figure is that of two processes on so many cores. A server
that runs ahead leaves several tokens to each read, which makes them cheaper; with --pace nearly every token is a read
of its own, and the client's share of a core is what to look at.
"""

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import pstats
import re
import time
from multiprocessing.connection import Connection
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from facet.bench.config import BenchConfig
from facet.bench.datasets import make_dataset
from facet.bench.metrics import compute_metrics
from facet.bench.serve import loop_factory, measure

EVENT = (
    b'data: {"id":"cmpl-00000000000000000000000000000000","created":1700000000,"model":"m","choices":[{"index":0,'
    b'"text":" token","logprobs":null,"finish_reason":null}],"object":"text_completion"}\n\n'
)
LAST = EVENT.replace(b'"finish_reason":null', b'"finish_reason":"length"')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":100000}]}'


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Stream:
    def __init__(self, transport: asyncio.Transport, num_tokens: int, num_prompt_tokens: int) -> None:
        self.transport = transport
        self.num_left = self.num_tokens = num_tokens
        usage = {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens}
        end = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        self.end = chunk(LAST) + chunk(end) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Serving(asyncio.Protocol):
    """One connection. Requests are read no further than is needed to answer them."""

    def __init__(self, streams: list[Stream]) -> None:
        self.streams = streams
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if not found or (length is not None and len(body) < int(length[1])):
            return
        self.buffer = b""
        if head.startswith(b"GET"):
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(MODELS), MODELS))
            return
        asked = json.loads(body)
        self.transport.write(HEAD)
        self.streams.append(Stream(self.transport, asked["max_tokens"], len(asked["prompt"])))


async def steps(streams: list[Stream], pace: float | None) -> None:
    """A token for every stream, again and again; `pace`: tokens per second, all streams together."""
    event = chunk(EVENT)
    due = time.perf_counter()
    while True:
        if pace:
            now = time.perf_counter()
            due = max(due + len(streams) / pace, now - 0.01)
            if due > now:
                await asyncio.sleep(due - now)
        for stream in streams:
            stream.num_left -= 1
            stream.transport.write(event if stream.num_left else stream.end)
        streams[:] = [stream for stream in streams if stream.num_left and not stream.transport.is_closing()]
        await asyncio.sleep(0 if streams else 0.0005)


def serve(pipe: Connection, pace: float | None) -> None:
    async def run() -> None:
        streams: list[Stream] = []
        server = await asyncio.get_running_loop().create_server(lambda: Serving(streams), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await steps(streams, pace)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--total-tokens", type=int, default=200_000, help="tokens of a round")
    parser.add_argument("--pace", type=float, help="tokens per second that the server sends; default: all it can")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, options.pace), daemon=True)
    server.start()
    port: int = ours.recv()
    table = Table(title=f"a server that computes nothing; streams of {options.tokens} tokens, prompts of 128")
    for column in ("in flight", "streamed tokens/s", "client's share of a core", "tokens/s per client core"):
        table.add_column(column, justify="right")
    profiler = cProfile.Profile()
    for concurrency in options.concurrency:
        settings: dict[str, Any] = dict(max_concurrency=concurrency, disable_tqdm=True, num_warmups=concurrency)
        num_prompts = max(concurrency, options.total_tokens // options.tokens)
        config = BenchConfig(
            port=port, num_prompts=num_prompts, random_input_len=128, random_output_len=options.tokens, **settings
        )
        conversations = make_dataset(config, None).conversations
        if options.profile:
            profiler.enable()
        spent = time.process_time()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            measured = runner.run(measure(config, conversations))
        spent = time.process_time() - spent
        profiler.disable()
        metrics = compute_metrics(measured.outcomes, measured.duration)
        assert metrics.num_output_tokens == num_prompts * options.tokens, metrics.failures
        # The warm-up is among the seconds spent; leave its part out.
        spent *= num_prompts / (num_prompts + concurrency)
        per_core = metrics.num_output_tokens / spent
        share = spent / measured.duration
        table.add_row(str(concurrency), f"{metrics.output_throughput:,.0f}", f"{share:.2f}", f"{per_core:,.0f}")
    server.terminate()
    Console().print(table)
    if options.profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


if __name__ == "__main__":
    main()
