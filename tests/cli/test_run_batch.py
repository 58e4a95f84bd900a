"""`facet run-batch`: a file of requests becomes a file of answers, in order, whatever happens on the way."""

import contextlib
import dataclasses
import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facet.cli import main
from facet.cli.batch_files import Answers, Requests
from facet.cli.batch_lines import URLS, BadLineError, count_tokens, read_request
from facet.config import ServerConfig
from tests.cli.bundle import command_with, environment, write_bundle
from tests.cli.scripted_server import MODEL, scripted_app
from tests.server.scripted_engine import ScriptedEngine

CHAT, COMPLETIONS, RESPONSES, MESSAGES = URLS
ASK = [{"role": "user", "content": "one"}]


def line(custom_id: object, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    body = body or {"prompt": "one", "max_tokens": 3}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


class Batch:
    """A run of the command in this process, behind whose server an engine says "one two"."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self.engine: ScriptedEngine | None = None
        self.config: ServerConfig | None = None
        self.on_request: Callable[[int], None] = lambda index: None
        self._capsys = capsys
        self.seconds_per_turn = 0.0
        monkeypatch.setattr("facet.cli.private_server.start_app", self._start)

    def _start(self, config: ServerConfig) -> Any:
        def say(index: int) -> str:
            self.on_request(index)
            return "one two"

        self.config = dataclasses.replace(config, disable_log_stats=True)
        engine, model, app = scripted_app(self.config, say, seconds_per_turn=self.seconds_per_turn)
        self.engine = engine
        return engine, model, app

    def __call__(self, *flags: str) -> tuple[int, str, str]:
        names = [] if "-o" in flags else ["-o", str(self.output)]
        names += [] if "-i" in flags else ["-i", str(self.input)]
        try:
            code = main(["run-batch", "--model", MODEL, *names, *flags])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, *self._capsys.readouterr()

    def asks(self, *lines: object) -> None:
        self.input.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines))

    @property
    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.output.read_text().splitlines()]


@pytest.fixture
def batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Batch]:
    before = signal.getsignal(signal.SIGTERM)
    yield Batch(tmp_path, monkeypatch, capsys)
    signal.signal(signal.SIGTERM, before)


class TestAnswers:
    def test_of_all_apis(self, batch: Batch) -> None:
        batch.asks(
            line("chat", CHAT, messages=ASK, model=MODEL),
            "",
            line("text"),
            line("response", RESPONSES, input="one"),
            line("message", MESSAGES, messages=ASK, max_tokens=9, model=MODEL),
            line("wrong", CHAT, messages=[]),
            line("unknown", CHAT, messages=ASK, model="other"),
        )
        code, out, err = batch()
        assert (code, out) == (0, "")
        answers = {answer["custom_id"]: answer for answer in batch.answers}
        assert list(answers) == ["chat", "text", "response", "message", "wrong", "unknown"]
        bodies = {name: answer["response"]["body"] for name, answer in answers.items()}
        assert bodies["chat"]["choices"][0]["message"]["content"] == "one two"
        assert bodies["text"]["choices"][0]["text"] == "one two"
        assert bodies["response"]["output"][-1]["content"][0]["text"] == "one two"
        assert bodies["message"]["content"][0]["text"] == "one two"
        for name, status in (("chat", 200), ("text", 200), ("wrong", 400), ("unknown", 404)):
            answer = answers[name]
            assert answer["response"]["status_code"] == status
            assert answer["response"]["request_id"] == answer["id"]
            if status == 200:
                assert answer["error"] is None
                assert answer["id"] in bodies[name]["id"], "the server's log names it"
            else:
                assert answer["error"] == {"code": str(status), "message": bodies[name]["error"]["message"]}
        assert "6 requests in " in err
        assert "4 answered, 2 failed, each with its reason" in err
        used = [body.get("usage") for body in bodies.values() if "usage" in body]
        num_generated = sum(usage.get("completion_tokens", 0) + usage.get("output_tokens", 0) for usage in used)
        assert f", {num_generated} generated" in err

    def test_lines_that_are_no_requests(self, batch: Batch) -> None:
        wrong: list[tuple[object, str | None, str]] = [
            ("nonsense", None, "Line 2 was not sent. It is not valid JSON"),
            ("[]", None, "It is not a JSON object."),
            ({"url": CHAT, "body": {}}, None, "It has no custom_id."),
            (line(7), None, "It has no custom_id."),
            (line(""), None, "It has no custom_id."),
            (line("a"), "a", "The custom_id is that of an earlier line"),
            (line("url", "/v1/embeddings"), "url", "url is '/v1/embeddings', but must be one of /v1/chat"),
            ({**line("get"), "method": "GET"}, "get", "method is 'GET'"),
            ({**line("list"), "body": [1]}, "list", "body is not a JSON object"),
            ({"custom_id": "none", "url": CHAT}, "none", "body is not a JSON object"),
            (line("stream", CHAT, messages=ASK, stream=True), "stream", "stream is True, but answers of a batch come"),
            (line("later", RESPONSES, input="a", background=True), "later", "background is True"),
            ('{"custom_id": "deep", "body": ' + "[" * 20_000, None, "It is not valid JSON"),
            (line("long", prompt="a" * 40_000), None, "It is longer than 32000 bytes"),
        ]
        batch.asks(line("a"), *(each for each, _, _ in wrong), line("z", prompt="x", stream=False))
        code, _, err = batch("--max-request-bytes", "32000")
        assert code == 0
        first, *refused, last = batch.answers
        assert [first["custom_id"], last["custom_id"]] == ["a", "z"]
        assert first["error"] is last["error"] is None
        for answer, (_, custom_id, words) in zip(refused, wrong, strict=True):
            assert (answer["custom_id"], answer["response"]) == (custom_id, None)
            assert answer["error"]["code"] == "invalid_line"
            assert words in answer["error"]["message"]
        assert f"2 answered, {len(wrong)} failed" in err

    def test_many_at_once_and_no_more(self, batch: Batch) -> None:
        most = 0
        batch.asks(*(line(f"r{index}", prompt=f"p{index}", max_tokens=2) for index in range(200)))

        def look(index: int) -> None:
            nonlocal most
            assert batch.engine is not None
            most = max(most, len(batch.engine._speaking) + 1)

        batch.on_request, batch.seconds_per_turn = look, 0.001
        assert batch("--max-num-seqs", "8")[0] == 0
        assert [answer["custom_id"] for answer in batch.answers] == [f"r{index}" for index in range(200)]
        assert 8 <= most <= 16

    def test_a_busy_server_is_waited_for(self, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("facet.server.dialect.RETRY_AFTER_SECONDS", 0.01)
        batch.asks(*(line(f"r{index}", prompt="p", max_tokens=2, n=3) for index in range(12)))
        batch.seconds_per_turn = 0.005
        assert batch("--max-num-seqs", "3", "--max-waiting-requests", "1")[0] == 0
        assert {answer["response"]["status_code"] for answer in batch.answers} == {200}

    def test_between_other_programs(
        self, batch: Batch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        batch.asks(line("a"), line("b"))
        given = "\ufeff" + batch.input.read_text()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given.encode())))
        code, out, err = batch("-i", "-", "-o", "-")
        assert (code, err.count("\n")) == (0, 1)
        assert {json.loads(text)["custom_id"] for text in out.splitlines()} == {"a", "b"}

    def test_flags_of_a_server_change_nothing(self, batch: Batch) -> None:
        batch.asks(line("a"))
        assert batch("--api-key", "secret", "--port", "9", "--root-path", "/x", "--block-size", "16")[0] == 0
        assert batch.config is not None
        assert batch.config.api_key == ()
        assert batch.answers[0]["error"] is None


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """A shell has what it runs in the background ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class TestRunsThatEndEarly:
    def test_the_engine_dies(self, batch: Batch) -> None:
        batch.asks(*(line(f"r{index}") for index in range(40)))

        def die(index: int) -> None:
            if index == 20:
                assert batch.engine is not None
                batch.engine.die()

        batch.on_request = die
        code, _, err = batch("--max-num-seqs", "2")
        assert code == 1
        assert "error: The engine stopped: it was told to." in err
        assert f" of 40 requests have a line in {batch.output}. --resume gets those that are missing." in err
        num_before = len([answer for answer in batch.answers if answer["error"] is None])
        assert 0 < num_before < 40
        batch.on_request = lambda index: None
        code, _, err = batch("--resume")
        assert code == 0
        assert f"({num_before} were answered before): {40 - num_before} answered, 0 failed" in err
        assert [answer["custom_id"] for answer in batch.answers] == [f"r{index}" for index in range(40)]
        assert all(answer["error"] is None for answer in batch.answers)
        assert batch.engine is not None
        assert len(batch.engine.submitted) == 40 - num_before

    @pytest.mark.usefixtures("heeds_interrupts")
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_it_is_told_to_stop(self, batch: Batch, number: signal.Signals, code: int) -> None:
        batch.asks(*(line(f"r{index}") for index in range(40)))
        batch.on_request = lambda index: os.kill(os.getpid(), number) if index == 20 else None
        batch.seconds_per_turn = 0.005
        ended, _, err = batch("--max-num-seqs", "2")
        assert ended == code
        assert "--resume gets those that are missing." in err
        assert "Traceback" not in err
        assert 0 < len(batch.answers) < 40
        assert batch.engine is not None
        assert batch.engine.is_closed

    def test_what_failed_is_asked_again_and_what_nobody_asks_stays(self, batch: Batch) -> None:
        batch.asks(line("a"), line("b", CHAT, messages=[]), line("old"), "nonsense")
        assert batch()[0] == 0
        batch.output.write_text(batch.output.read_text() + '{"custom_id": "half')
        batch.asks(line("c"), line("b", CHAT, messages=ASK), line("a"), "nonsense")
        assert batch("--resume")[0] == 0
        assert [answer["custom_id"] for answer in batch.answers] == ["c", "b", "a", None, "old"]
        assert [answer["error"] is None for answer in batch.answers] == [True, True, True, False, True]

    def test_there_is_no_room_to_put_answers_in_order(self, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
        batch.asks(line("a"), line("b"))
        assert batch()[0] == 0
        before = batch.output.read_text()
        batch.asks(line("b"), line("a"))

        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("facet.cli.batch_files.shutil.copymode", fail)
            patch.setattr("facet.cli._end_output", lambda: None)
            code, _, err = batch("--resume")
        assert (code, batch.output.read_text()) == (1, before)
        assert "error: A write failed: No space left on device." in err
        assert sorted(path.name for path in batch.output.parent.iterdir()) == ["in.jsonl", "out.jsonl"]
        assert batch("--resume")[0] == 0
        assert [answer["custom_id"] for answer in batch.answers] == ["b", "a"]

    def test_nothing_is_left_to_do(self, batch: Batch) -> None:
        batch.asks(line("a"))
        assert batch("--resume")[0] == 0, "there is nothing to go on with, which is no mistake"
        before, batch.engine = batch.output.read_text(), None
        code, _, err = batch("--resume")
        assert (code, batch.engine, batch.output.read_text()) == (0, None, before)
        assert "0 requests in 0.0 s (1 were answered before)" in err


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (("-i", ""), "-i names no file"),
            (("-i", "https://x/in.jsonl"), "-i https://x/in.jsonl is an address"),
            (("-o", "s3://x/out.jsonl"), "-o s3://x/out.jsonl is an address"),
            (("-i", "/none.jsonl"), "-i /none.jsonl cannot be read: No such file"),
            (("-i", "/"), "-i / cannot be read: Is a directory"),
            (("-o", "/none/out.jsonl"), "-o: /none cannot be written to"),
            (("--overwrite", "--resume"), "exclude each other"),
            (("-o", "-", "--resume"), "--resume needs a file"),
            (("--data-parallel-size", "2"), "runs one replica"),
            (("--tool-call-parser", "x"), "--tool-call-parser x is unknown"),
        ],
        ids=str,
    )
    def test_before_a_model_is_loaded(self, batch: Batch, flags: tuple[str, ...], words: str) -> None:
        batch.asks(line("a"))
        code, out, err = batch(*flags)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
        assert batch.engine is None
        assert not batch.output.exists()

    def test_a_file_that_is_there(self, batch: Batch) -> None:
        batch.asks(line("a"))
        batch.output.write_text("precious\n")
        for flags, words in ((), "Add --resume"), (("--resume",), "Line 1 of "):
            code, _, err = batch(*flags)
            assert (code, err.count("\n")) == (2, 1)
            assert words in err
            assert batch.output.read_text() == "precious\n"
        assert batch("--overwrite")[0] == 0
        assert [answer["custom_id"] for answer in batch.answers] == ["a"]
        code, _, err = batch("-o", str(batch.input), "--overwrite")
        assert code == 2
        assert "is the file of the requests" in err

    def test_an_empty_batch(self, batch: Batch) -> None:
        batch.asks("", "  ")
        code, _, err = batch()
        assert code == 2
        assert "has no requests" in err


def test_runs_that_are_cut_off_anywhere_add_up_to_one(tmp_path: Path) -> None:
    """Against a dictionary: whatever has an answer keeps it, and the end is in the order of the requests."""
    choose = random.Random(3)
    for round in range(60):
        ids = [f"{round}-{number}" for number in range(choose.randint(1, 12))]
        (tmp_path / "in").write_text("".join(json.dumps(line(each)) + "\n" for each in ids))
        output = tmp_path / f"out{round}"
        kept: dict[str, str] = {}
        is_done = False
        while not is_done:
            requests = Requests(str(tmp_path / "in"), 1000)
            answers = Answers(str(output), requests, keeps=True)
            assert {ids[index] for index in range(len(ids)) if answers.has(index)} == set(kept)
            answers.open()
            missing = [index for index in range(len(ids)) if not answers.has(index)]
            choose.shuffle(missing)
            is_done = choose.random() < 0.3
            for index in missing if is_done else missing[: choose.randint(0, len(missing))]:
                text = f"{choose.random()}" * choose.randint(1, 4)
                fails = not is_done and choose.random() < 0.3
                answer = {
                    "custom_id": ids[index],
                    "response": {"body": text},
                    "error": {"code": "1"} if fails else None,
                }
                answers.add(index, json.dumps(answer).encode() + b"\n")
                if not fails:
                    kept[ids[index]] = text
            if is_done:
                answers.put_in_order()
            answers.close()
            requests.close()
            if not is_done and choose.random() < 0.5:
                with output.open("a") as file:
                    file.write('{"custom_id": "' + choose.choice(ids))
        found = [json.loads(text) for text in output.read_text().splitlines()]
        assert [(each["custom_id"], each["response"]["body"]) for each in found] == [(each, kept[each]) for each in ids]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out") and "." in path.name]


def test_garbage_is_an_error_and_nothing_else() -> None:
    choose = random.Random(5)
    good = json.dumps(line("a", CHAT, messages=ASK)).encode()
    for _ in range(2000):
        text = bytearray(good)
        for _ in range(choose.randint(1, 5)):
            text[choose.randrange(len(text))] = choose.randrange(256)
        with contextlib.suppress(BadLineError):
            assert read_request(bytes(text)).url in URLS


def test_tokens_are_counted_in_every_api() -> None:
    for usage, expected in (
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, (3, 4)),
        ({"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 5}, (8, 4)),
        (None, (0, 0)),
    ):
        assert count_tokens(json.dumps({"usage": usage}).encode()) == expected


def test_with_a_model(tmp_path: Path) -> None:
    """The command and its engine, in processes of their own."""
    bundle = write_bundle(tmp_path / "bundle")
    requests = [line(f"r{index}", prompt=f"one {index}", max_tokens=4, ignore_eos=True) for index in range(20)]
    text = "".join(json.dumps(each) + "\n" for each in requests)
    output = tmp_path / "out.jsonl"
    command = command_with(bundle, "run-batch", "-i", "-", "-o", str(output), "--device", "cpu")
    done = subprocess.run(
        [*command, "--kv-cache-memory-bytes", "32MiB"],
        input=text, capture_output=True, text=True, env=environment(), timeout=100,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    answers = [json.loads(each) for each in output.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"r{index}" for index in range(20)]
    assert {answer["response"]["body"]["usage"]["completion_tokens"] for answer in answers} == {4}
    assert "20 answered, 0 failed" in done.stderr
    assert ", 80 generated" in done.stderr
