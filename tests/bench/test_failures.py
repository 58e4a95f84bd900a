"""Whole runs against servers that do not behave: counted, explained, and told by the exit code."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from facet.bench.config import BenchConfig
from facet.bench.ready import ServerUnavailableError
from facet.bench.serve import bench_serve
from facet.errors import ConfigError
from tests.bench.fake_server import Answer, Call, FakeServer, fake_server
from tests.bench.small_runs import SMALL, Bench, bodies, complete


class TestFailuresOnTheWay:
    """Each is counted under its kind; the others are measured; the exit code tells."""

    @staticmethod
    def in_the_middle(fail: Answer) -> Answer:
        async def answer(call: Call) -> None:
            await (fail(call) if call.asked.number in (2, 4) else call.completion())

        return answer

    @pytest.mark.parametrize(
        ("kind", "message"),
        [
            ("HTTP 503", "too many waiting"),
            ("HTTP 400", "too many waiting"),
            ("HTTP 500", "<html> oh no"),
            ("connection lost", ""),
            ("stream ended early", "closed the connection in the middle"),
            ("stream ended early", "neither [DONE] nor a finish reason"),
            ("error in the stream", "out of memory"),
            ("answer not understood", "in the chunk {broken"),
            ("no tokens", "no chunk with a token"),
            ("timed out", "no whole answer within 2 seconds"),
        ],
        ids=lambda value: str(value)[:24],
    )
    def test_by_kind(self, bench: Bench, kind: str, message: str) -> None:
        async def fail(call: Call) -> None:
            if kind in ("HTTP 503", "HTTP 400"):
                await call.json(int(kind[-3:]), {"error": {"message": "too many waiting"}})
                return
            if kind == "HTTP 500":
                await call.send(b"HTTP/1.1 500 X\r\nContent-Length: 14\r\n\r\n<html>\noh no\n\n")
                return
            await call.head()
            if kind == "no tokens":
                await call.end()
                return
            await call.event({"choices": [{"text": "x", "finish_reason": None}]})
            if kind == "error in the stream":
                await call.event({"error": {"message": "out of memory"}})
            elif kind == "answer not understood":
                await call.event(b"data: {broken\n\n")
            elif "[DONE]" in message:
                await call.end(done=False)
            elif kind == "stream ended early":
                call.writer.close()
            elif kind == "connection lost":
                call.writer.get_extra_info("socket").setsockopt(
                    1, 13, b"\1\0\0\0\0\0\0\0"
                )  # SO_LINGER: end with a reset
                call.reset()
            elif kind == "timed out":
                await asyncio.sleep(20)

        timeout = {"request_timeout": 2.0} if kind == "timed out" else {}
        code, table, err, _ = bench(self.in_the_middle(fail), max_concurrency=1, **timeout)
        assert code == 1
        assert (table["Successful requests"], table["Failed requests"], table[kind]) == ("4", "2", "2")
        assert err.startswith(f"{kind}: ")
        assert message in err
        assert err.count("\n") == 1
        assert table["Total generated tokens"] == "16"

    def test_a_server_that_dies(self, bench: Bench) -> None:
        with fake_server(complete) as server:

            async def answer(call: Call) -> None:
                if call.asked.number < 3:
                    await call.completion()
                else:
                    call.reset()

            server.answer = answer
            code = bench_serve(BenchConfig(port=server.port, max_concurrency=2, **SMALL))
        assert code == 1

    def test_all_fail(self, bench: Bench) -> None:
        async def answer(call: Call) -> None:
            await (call.completion() if call.asked.number == 0 else call.json(429, {"message": "slow down"}))

        code, table, err, _ = bench(answer, goodput=("ttft:1",))
        assert code == 1
        assert (table["Successful requests"], table["HTTP 429"], table["Mean TTFT (ms)"]) == ("0", "6", "nan")
        assert err == "HTTP 429: slow down\n"

    def test_bad_lines_of_a_dataset(self, bench: Bench, tmp_path: Path) -> None:
        path = tmp_path / "data.jsonl"
        path.write_text('{"prompt": "what", "max_tokens": 3}\n{"prompt": \n{"prompt": "why", "max_tokens": 3}\n')
        code, table, err, server = bench(complete, dataset_name="custom", dataset_path=str(path), num_prompts=2)
        assert code == 1
        assert table["Unusable dataset entries"] == "1"
        assert "data.jsonl, line 2: not JSON" in err
        assert [body["prompt"] for body in bodies(server)] == ["what", "why"]


class TestNotStarting:
    """One clear error before anything is measured."""

    @pytest.mark.parametrize(
        ("status", "message"), [(404, "no such path"), (401, "no key"), (400, "unknown model"), (500, "broken")]
    )
    def test_the_first_request_is_refused(self, status: int, message: str) -> None:
        async def answer(call: Call) -> None:
            await call.json(status, {"error": {"message": message}})

        with fake_server(answer) as server:
            with pytest.raises(ServerUnavailableError, match=rf"/v1/completions failed, HTTP {status}: {message}"):
                bench_serve(BenchConfig(port=server.port, **SMALL))
            assert len(server.asked) == 1

    def test_prompts_that_do_not_fit(self) -> None:
        with fake_server(complete) as server, pytest.raises(ConfigError, match=r"5004 tokens.* context of m is 4096"):
            bench_serve(BenchConfig(port=server.port, **{**SMALL, "random_input_len": 5000}))

    def test_long_lines_of_a_file_are_the_servers_to_refuse(self, bench: Bench, tmp_path: Path) -> None:
        path = tmp_path / "data.jsonl"
        path.write_text(json.dumps({"prompt": [5] * 5000, "max_tokens": 2}))
        code, _, _, _ = bench(complete, dataset_name="custom", dataset_path=str(path), num_prompts=1)
        assert code == 0

    def test_nobody_there(self) -> None:
        with pytest.raises(ServerUnavailableError, match=r"No server answers at http://127\.0\.0\.1:1: .*refused"):
            bench_serve(BenchConfig(port=1, **SMALL))

    def test_something_else_there(self) -> None:
        async def nothing(call: Call) -> None: ...

        with fake_server(nothing) as server:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"220 mail.example.org ESMTP\r\n")
                await reader.read(1)
                writer.close()

            server.serve = serve  # type: ignore[method-assign]
            with pytest.raises(ServerUnavailableError, match=r"mail\.example\.org"):
                bench_serve(BenchConfig(port=server.port, **SMALL))

    def test_waiting_for_a_server_that_comes_up(self) -> None:
        """The list of models is refused with 503 for a while, as while a model loads."""

        class Loading(FakeServer):
            num_asked = 0

        with fake_server(complete) as server:
            original = Call.json

            async def busy(call: Call, status: int, value: Any) -> None:
                Loading.num_asked += 1
                await original(call, 503 if Loading.num_asked < 3 else status, value)

            patch = pytest.MonkeyPatch()
            patch.setattr(Call, "json", busy)
            patch.setattr("facet.bench.ready._SECONDS_BETWEEN_TRIES", 0.01)
            try:
                with pytest.raises(ServerUnavailableError, match="--ready-check-timeout-sec"):
                    bench_serve(BenchConfig(port=server.port, **SMALL))
                assert bench_serve(BenchConfig(port=server.port, ready_check_timeout_sec=20, **SMALL)) == 0
            finally:
                patch.undo()
