"""`facet complete`: the answer alone on standard output, everything else elsewhere, and exit codes for scripts."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from facet.cli import main
from tests.cli.bundle import command_with, environment, write_bundle
from tests.cli.scripted_server import MODEL, Scripted, scripted_server
from tests.cli.test_chat import CALL, WEATHER

Complete = Callable[..., tuple[int, str, str]]


@pytest.fixture
def complete(capsys: pytest.CaptureFixture[str]) -> Complete:
    def run(server: Scripted, *arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["complete", "--url", server.url, *arguments])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def tools_file(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([WEATHER]))
    return str(path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundle"))


class TestAnswers:
    def test_one(self, complete: Complete) -> None:
        with scripted_server(["one two"]) as server:
            assert complete(server, "Count.") == (0, "one two\n", "")
            assert "user\nCount.<turn|>" in server.prompts[0]

    def test_a_line_that_ends_is_not_ended_again(self, complete: Complete) -> None:
        with scripted_server(["one\n"]) as server:
            assert complete(server, "Count.") == (0, "one\n", "")

    def test_settings(self, complete: Complete) -> None:
        with scripted_server(["one two three four"]) as server:
            flags = ["--temperature", "0.5", "--seed", "3", "--top-k", "7", "--top-p", "0.5", "--max-tokens", "50"]
            flags += ["--stop", "[", "--stop", "three", "--thinking-token-budget", "9"]
            assert complete(server, *flags, "Count.", "--system", "Be brief.") == (0, "one two \n", "")
            sampling = server.request.sampling
            assert (sampling.temperature, sampling.seed, sampling.top_k, sampling.top_p) == (0.5, 3, 7, 0.5)
            assert (sampling.max_tokens, sampling.stop) == (50, ("[", "three"))
            assert sampling.thinking_token_budget == 9
            assert "system\nBe brief.<turn|>" in server.prompts[0]

    @pytest.mark.parametrize("arguments", [("-",), ()])
    def test_from_standard_input(
        self, complete: Complete, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
        with scripted_server(["three"]) as server:
            assert complete(server, *arguments) == (0, "three\n", "")
            assert "user\none\ntwo\n<turn|>" in server.prompts[0]

    def test_other_encodings(self, tmp_path: Path) -> None:
        """A byte that is no text is told from text that the locale does not know; JSON stays what it was."""

        def run(server: Scripted, given: bytes, *arguments: str) -> tuple[int, bytes, bytes]:
            command = [sys.executable, "-m", "facet", "complete", "--url", server.url, *arguments]
            ascii = {**environment(), "PYTHONIOENCODING": "ascii"}
            done = subprocess.run(command, input=given, capture_output=True, env=ascii, timeout=100, check=False)
            return done.returncode, done.stdout, done.stderr

        schema = tmp_path / "schema.json"
        schema.write_text("{}")
        with scripted_server(["drei Fl\u00fcsse", '"Fl\u00fcsse"', "Fl\u00fcsse"]) as server:
            code, _, err = run(server, b"hi \xff\n")
            assert (code, err.count(b"\n")) == (2, 1)
            assert b"The prompt is not UTF-8 text." in err
            assert run(server, "Fl\u00fcsse?".encode()) == (0, b"drei Fl?sse\n", b"")
            assert "user\nFl\u00fcsse?<turn|>" in server.prompts[0]
            code, out, err = run(server, b"?", "--schema", str(schema))
            assert (code, json.loads(out), err) == (0, "Fl\u00fcsse", b"")
            code, out, err = run(server, b"?", "--json")
            assert (code, json.loads(out)["choices"][0]["message"]["content"], err) == (0, "Fl\u00fcsse", b"")

    def test_raw(self, complete: Complete) -> None:
        with scripted_server(["three four"]) as server:
            assert complete(server, "one two", "--raw") == (0, "three four\n", "")
            assert server.prompts == ["one two"]
            assert server.request.sampling.max_tokens == 128
            assert complete(server, "one two", "--raw", "--chat")[0] == 0  # the last one counts
            assert "<|turn>" in server.prompts[1]

    def test_calls_are_lines_of_json(self, complete: Complete, tools_file: str) -> None:
        with scripted_server([f"light {CALL}{CALL}"]) as server:
            code, out, err = complete(server, "Weather?", "--tools", tools_file)
            assert (code, err) == (0, "")
            text, *calls = out.splitlines()
            assert text.strip() == "light"
            assert [json.loads(call) for call in calls] == [{"name": "weather", "arguments": {"city": "Paris"}}] * 2

    def test_thoughts_are_not_on_standard_output(self, complete: Complete) -> None:
        with scripted_server(["<|channel>thought\nwind<channel|>light"]) as server:
            assert complete(server, "How?", "--think") == (0, "light\n", "")
            assert "<|think|>" in server.prompts[0]

    def test_json(self, complete: Complete, tools_file: str) -> None:
        with scripted_server([f"<|channel>thought\nwind<channel|>{CALL}"]) as server:
            code, out, err = complete(server, "Weather?", "--tools", tools_file, "--think", "--json")
            assert (code, err) == (0, "")
            response = json.loads(out)
            assert (response["object"], response["model"]) == ("chat.completion", MODEL)
            (choice,) = response["choices"]
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["reasoning"] == "wind"
            assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
            code, out, _ = complete(server, "one", "--raw", "--json")
            assert (code, json.loads(out)["object"]) == (0, "text_completion")


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("",), "The prompt is empty."),
            (("  \n",), "The prompt is empty."),
            (("x", "y"), "has no y"),
            (("x", "--tools", "/none.json"), "The tools in /none.json cannot be read"),
            (("x", "--schema", "/none.json"), "The schema in /none.json cannot be read"),
            (("x", "--raw", "--tools", "t"), "--tools is for messages, but --raw"),
            (("x", "--raw", "--system", "s"), "--system is for messages, but --raw"),
            (("x", "--raw", "--think"), "--think is for messages, but --raw"),
            (("x", "--temperature", "-1"), "temperature is -1.0"),
            (("x", "--max-tokens", "0"), "max_tokens is 0, but must be 1 or more"),
            (("\udcff\udcfe",), "error: The prompt is not UTF-8 text. Convert it,"),
            (("x", "--system", "\udcff"), "--system is not UTF-8 text."),
            (("x", "--stop", "\udcff"), "--stop is not UTF-8 text."),
            (("x", "--stop", ""), "stop holds an empty string"),
            (("x", "--model", "other"), f"has no model other; it has {MODEL}."),
        ],
        ids=str,
    )
    def test_one_line(self, complete: Complete, arguments: tuple[str, ...], words: str) -> None:
        with scripted_server(["one"]) as server:
            code, out, err = complete(server, *arguments)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert words in err

    def test_a_schema_that_cannot_be_honoured(self, complete: Complete, tmp_path: Path) -> None:
        path = tmp_path / "schema.json"
        path.write_text('{"not": {}}')
        with scripted_server(["one"]) as server:
            code, out, err = complete(server, "x", "--schema", str(path))
            assert (code, out) == (2, "")
            assert "cannot be honoured" in err

    def test_an_answer_that_fails(self, complete: Complete) -> None:
        with scripted_server(["one two three"]) as server:
            server.engine.fail_after = 2
            code, _, err = complete(server, "x")
            assert (code, err.count("\n")) == (1, 1)
            assert "held NaN" in err
            code, out, _ = complete(server, "x", "--json")
            assert (code, out) == (1, "")

    def test_cut_off(self, complete: Complete, tmp_path: Path) -> None:
        path = tmp_path / "schema.json"
        path.write_text('{"type": "object"}')
        with scripted_server(["one two three"]) as server:
            assert complete(server, "x", "--max-tokens", "1")[0] == 0
            code, _, err = complete(server, "x", "--max-tokens", "1", "--schema", str(path))
            assert code == 1  # half of a JSON text is no answer
            assert "Raise --max-tokens" in err


class TestWithAModel:
    """The engine and all, in a process of its own."""

    @staticmethod
    def run(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_with(bundle, "complete", "--device", "cpu", *arguments),
            capture_output=True, text=True, env=environment(), timeout=100, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def test_an_answer_in_the_form_of_a_schema(self, bundle: Path, tmp_path: Path) -> None:
        schema = {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "flag": {"type": "boolean"}},
            "required": ["kind", "flag"],
            "additionalProperties": False,
        }
        path = tmp_path / "schema.json"
        path.write_text(json.dumps(schema))
        done = self.run(bundle, "one two", "--schema", str(path), "--seed", "1", "--max-tokens", "200")
        assert (done.returncode, done.stderr) == (0, "")
        jsonschema.validate(json.loads(done.stdout), schema)

    def test_the_whole_response(self, bundle: Path) -> None:
        done = self.run(bundle, "one", "--raw", "--seed", "5", "--max-tokens", "12", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        response = json.loads(done.stdout)
        assert (response["model"], response["object"]) == ("facet", "text_completion")
        assert response["usage"]["completion_tokens"] <= 12

    def test_a_model_that_cannot_chat(self, bundle: Path, tmp_path: Path) -> None:
        for path in bundle.iterdir():
            if path.name != "chat_template.jinja":
                (tmp_path / path.name).write_bytes(path.read_bytes())
        done = self.run(bundle, "one", "--model", str(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"error: {tmp_path} has no chat template. Add --raw to continue a text instead.\n"
