"""Whole runs against servers that behave: what is sent, and what is measured."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace

import pytest

from facet.bench.config import BenchConfig
from facet.bench.serve import bench_serve
from tests.bench.fake_server import Call, fake_server
from tests.bench.small_runs import SMALL, Bench, bodies, complete


class TestWhatIsSent:
    def test_completions(self, bench: Bench) -> None:
        code, table, err, server = bench(complete)
        assert (code, err) == (0, "")
        assert {asked.path for asked in server.asked} == {"/v1/completions"}
        for body in bodies(server):
            prompt = body.pop("prompt")
            assert len(prompt) == 5
            assert body == {
                "model": "m",
                "max_tokens": 4,
                "stream": True,
                "stream_options": {"include_usage": True},
                "ignore_eos": True,
            }
        assert table["Successful requests"] == "6"
        assert table["Failed requests"] == "0"
        assert table["Total input tokens"] == "30"
        assert table["Total generated tokens"] == "24"

    def test_sampling_headers_and_paths(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
        _, _, _, server = bench(
            complete,
            **{
                **dict(num_prompts=1, temperature=0.0, top_p=0.9, top_k=5, min_p=0.1, backend="vllm", model="some"),
                **dict(header=("X-One=1", "X-Two=a=b"), endpoint="/other/completions", served_model_name="name"),
                **dict(extra_body={"top_k": 7, "logprobs": 1, "stream_options": None}),
            },
        )
        (asked,) = server.asked
        wanted = {"temperature": 0.0, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "logprobs": 1, "model": "name"}
        assert {**asked.body, **wanted} == asked.body
        assert "stream_options" not in asked.body
        assert asked.path == "/other/completions"
        assert asked.headers["x-one"] == "1"
        assert asked.headers["x-two"] == "a=b"
        assert asked.headers["authorization"] == "Bearer from the environment"
        _, _, _, server = bench(complete, num_prompts=1, api_key="given")
        assert server.asked[0].headers["authorization"] == "Bearer given"

    def test_a_url_with_a_path(self, bench: Bench) -> None:
        with fake_server(complete) as server:
            assert bench_serve(BenchConfig(base_url=f"http://localhost:{server.port}/some/path/", **SMALL)) == 0
        assert {asked.path for asked in server.asked} == {"/some/path/v1/completions"}

    def test_a_dataset_of_texts_does_not_forbid_the_end(self, bench: Bench, tmp_path: Path) -> None:
        path = tmp_path / "data.jsonl"
        path.write_text('{"prompt": "what", "max_tokens": 3}\n')
        _, _, _, server = bench(complete, dataset_name="custom", dataset_path=str(path), num_prompts=1)
        (body,) = bodies(server)
        assert (body["prompt"], body["max_tokens"]) == ("what", 3)
        assert "ignore_eos" not in body
        _, _, _, server = bench(complete, dataset_name="custom", dataset_path=str(path), num_prompts=1, ignore_eos=True)
        assert bodies(server)[0]["ignore_eos"] is True

    def test_warm_ups_are_sent_and_not_counted(self, bench: Bench) -> None:
        _, table, _, server = bench(complete, num_warmups=3)
        assert len(server.asked) == 9
        assert table["Successful requests"] == "6"
        first = bodies(server)[:4]
        assert first[0] == first[1] == first[2]

    def test_no_more_at_once_than_allowed(self, bench: Bench) -> None:
        async def slowly(call: Call) -> None:
            await call.completion(pause=0.002)

        _, table, _, server = bench(slowly, num_prompts=12, max_concurrency=3)
        assert server.most_at_once == 3
        assert float(table["Peak concurrent requests"]) == 3
        _, _, _, server = bench(slowly, num_prompts=12)
        assert server.most_at_once == 12

    def test_arrivals_follow_the_rate(self, bench: Bench) -> None:
        _, table, _, _ = bench(complete, num_prompts=10, request_rate=40.0)
        assert 0.2 < float(table["Benchmark duration (s)"]) < 5
        assert table["Request rate configured (RPS)"] == "40.00"


class Clock:
    """A time that stands still until the server moves it, and knows when the client has looked."""

    def __init__(self) -> None:
        self.now = 100.0
        self.num_looks = 0

    def read(self) -> float:
        self.num_looks += 1
        return self.now

    async def seen(self, sending: Awaitable[None]) -> None:
        """Send, and wait until the client has read the clock for what was sent."""
        before = self.num_looks
        await sending
        while self.num_looks == before:
            await asyncio.sleep(0.001)


class TestMeasuring:
    def test_times_are_those_of_the_server(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """0.1 s to the first token, then three gaps of 0.05 s, by a clock that only the server moves."""
        clock = Clock()
        for module in ("client", "load", "serve"):
            monkeypatch.setattr(f"facet.bench.{module}.time", SimpleNamespace(perf_counter=lambda: clock.now))
        monkeypatch.setattr("facet.bench.http_client.time", SimpleNamespace(perf_counter=clock.read))

        async def answer(call: Call) -> None:
            await clock.seen(call.head())
            for index in range(4):
                clock.now += 0.1 if index == 0 else 0.05
                await clock.seen(call.event({"choices": [{"text": "x", "finish_reason": None}]}))
            clock.now += 0.2  # after the last token: no part of the latency
            await call.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}})
            await call.end()

        _, table, _, _ = bench(answer, num_prompts=3, max_concurrency=1)
        times = {name: float(table[f"Median {name} (ms)"]) for name in ("TTFT", "ITL", "TPOT", "E2EL")}
        assert times == {"TTFT": 100, "ITL": 50, "TPOT": 50, "E2EL": 250}

    def test_the_servers_count_goes_over_ours(self, bench: Bench) -> None:
        async def two_tokens_a_chunk(call: Call) -> None:
            await call.head()
            for _ in range(2):
                await call.event({"choices": [{"text": "x y", "finish_reason": None}]})
            await call.event({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 4}})
            await call.end()

        _, table, _, _ = bench(two_tokens_a_chunk)
        assert table["Total generated tokens"] == "24"
        assert table["Total input tokens"] == "300"

    def test_a_server_without_usage(self, bench: Bench) -> None:
        async def answer(call: Call) -> None:
            await call.completion(usage=False)

        code, table, _, _ = bench(answer)
        assert code == 0
        assert table["Answers without usage (chunks counted)"] == "6"
        assert table["Total generated tokens"] == "24"
        assert table["Total input tokens"] == "30"

    def test_a_closed_connection_after_every_answer(self, bench: Bench) -> None:
        async def answer(call: Call) -> None:
            body = b'data: {"choices":[{"text":"x","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
            await call.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
            call.writer.close()

        code, table, _, server = bench(answer)
        assert (code, table["Successful requests"]) == (0, "6")
        assert server.num_connections == 8  # what is asked before came over the first; /metrics is asked for again
