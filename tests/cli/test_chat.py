"""`facet chat`: against a real server whose model says what it is told to, through a pipe and on a terminal."""

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from facet.cli import main
from facet.cli.answers import ChatAnswer
from facet.cli.api_client import ApiClient, ServerFailedError
from facet.cli.chat_commands import run_command
from facet.cli.conversation import Conversation
from facet.errors import ConfigError, UserError
from tests.cli.scripted_server import MODEL, Scripted, scripted_server
from tests.media.hostile_pictures import good_files

SOURCE = Path(__file__).parents[2] / "src"
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|>'

Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """The command with lines on its standard input."""

    def run(server: Scripted, lines: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        code = main(["chat", "--url", server.url, *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([WEATHER]))
    return path


class TestThroughAPipe:
    def test_lines_in_answers_out(self, chat: Chat) -> None:
        with scripted_server(["one two", "three"]) as server:
            assert chat(server, "first\n\n  second \n") == (0, "one two\nthree\n", "")
            # The second prompt has the first question and its answer before it.
            assert "user\nfirst<turn|>" in server.prompts[1]
            assert "assistant\none two<turn|>" in server.prompts[1]
            assert "user\nsecond<turn|>" in server.prompts[1]
            assert len(server.prompts) == 2

    def test_a_tool_call_and_its_result(self, chat: Chat, tools_file: Path) -> None:
        with scripted_server([CALL, "The weather is clear."]) as server:
            code, out, err = chat(server, f"/tools {tools_file}\nWeather?\n20 degrees\n")
            assert (code, err) == (0, "Tools: weather.\n")
            assert out == 'weather {"city":"Paris"}\nThe weather is clear.\n'
            assert "tool\n20 degrees<turn|>" in server.prompts[1]
            assert "<|tool>" in server.prompts[0]

    def test_thoughts_are_not_answers(self, chat: Chat) -> None:
        with scripted_server(["<|channel>thought\nwind<channel|>light"]) as server:
            said = "Thinking on.\nThinking off.\n"
            assert chat(server, "/think\nHow?\n/think\nHow?\n") == (0, "light\nlight\n", said)
            assert "<|think|>" in server.prompts[0]
            assert "<|think|>" not in server.prompts[1]

    def test_thoughts_have_a_budget(self, chat: Chat) -> None:
        lines = "How?\n/set thinking_token_budget 30\nHow?\n/set thinking_token_budget default\nHow?\n"
        with scripted_server(["light"]) as server:
            code, _, err = chat(server, lines, "--think", "--thinking-token-budget", "12")
            assert (code, err.count("\n")) == (0, 2)
            assert [request.sampling.thinking_token_budget for request in server.engine.submitted] == [12, 30, None]

    def test_commands(self, chat: Chat) -> None:
        lines = "/system Be brief.\n/set temperature 0.25\n/set seed 7\nHi\n/clear\n/set temperature default\nAgain\n"
        with scripted_server(["one"]) as server:
            code, out, err = chat(server, lines + "/exit\nnever\n", "--max-tokens", "5")
            assert (code, out) == (0, "one\none\n"), "what commands say is no answer"
            assert err.splitlines()[:2] == ["System prompt set.", "Settings: max_tokens 5, temperature 0.25."]
            first, second = server.engine.submitted
            assert "system\nBe brief.<turn|>" in server.prompts[1]
            assert "Hi" not in server.prompts[1]
            assert (first.sampling.temperature, first.sampling.seed, first.sampling.max_tokens) == (0.25, 7, 5)
            assert second.sampling.temperature == 1.0

    def test_a_file_is_named(self, chat: Chat, tmp_path: Path) -> None:
        (tmp_path / "it.png").write_bytes(good_files()["png"])
        with scripted_server(["one"]) as server:
            code, out, err = chat(server, f"/attach {tmp_path / 'it.png'}\n/help\n")
            assert (code, out) == (0, "")
            assert err.startswith(f"Attached {tmp_path / 'it.png'} (picture). 1 file will go with your next message.\n")
            assert "/attach FILE" in err

    def test_a_line_that_is_no_text(self, chat: Chat) -> None:
        with scripted_server(["one"]) as server:
            code, out, err = chat(server, "hi \udcff\nhi\n")
            assert (code, out, err.count("\n")) == (0, "one\n", 1)
            assert err.startswith("error: The message is not UTF-8 text.")
            assert len(server.prompts) == 1

    def test_two_slashes_are_one(self, chat: Chat) -> None:
        with scripted_server(["one"]) as server:
            assert chat(server, "//etc/hosts\n")[:2] == (0, "one\n")
            assert "user\n/etc/hosts<turn|>" in server.prompts[0]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("/tools /nowhere.json", "The tools in /nowhere.json cannot be read: No such file or directory."),
            ("/thimk", "There is no /thimk. Did you mean /think?"),
            ("/set heat 3", "There is no setting 'heat'. There are: temperature"),
            ("/set temperature hot", "temperature must be a number, not 'hot'"),
            ("/set top_k 1.5", "top_k must be a whole number, not '1.5'"),
            ("/set thinking_token_budget -1", "thinking_token_budget is -1, but must be 0 (no thought) or more"),
            ("/set max_tokens 0", "max_tokens is 0, but must be 1 or more"),
            ("/set temperature -1", "temperature is -1.0, but must be 0 (greedy) or more."),
        ],
    )
    def test_a_fault_is_one_line_and_the_session_goes_on(self, chat: Chat, line: str, words: str) -> None:
        with scripted_server(["one"]) as server:
            code, out, err = chat(server, f"{line}\nHi\n")
            assert (code, out) == (0, "one\n")
            assert err.startswith("error: ")
            assert words in err
            assert err.count("\n") == 1
            assert server.prompts[-1].count("<|turn>user") == 1  # what failed is not part of the conversation

    def test_what_the_server_refuses_is_taken_back(self, chat: Chat, tmp_path: Path) -> None:
        path = tmp_path / "strict.json"
        function = {"name": "f", "strict": True, "parameters": {"type": "object", "not": {"type": "null"}}}
        path.write_text(json.dumps({"type": "function", "function": function}))
        with scripted_server(["one"]) as server:
            code, out, err = chat(server, f"/tools {path}\nfirst\n/tools off\nsecond\n")
            assert (code, out) == (0, "one\n")
            said, error, off = err.splitlines()
            assert (said, off) == ("Tools: f.", "No tools.")
            assert error.startswith("error: Calls of the tool 'f' cannot be constrained")
            (prompt,) = server.prompts
            assert "first" not in prompt

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("{", "cannot be read as JSON"),
            ("[]", "contains no tools"),
            ("3", "tools must be a list"),
            ('[{"type": "function"}]', "tools[0]"),
            ('[{"type": "function", "function": {"name": "a b"}}]', "tools[0].function.name is 'a b'"),
        ],
    )
    def test_files_that_hold_no_tools(self, chat: Chat, tmp_path: Path, content: str, words: str) -> None:
        path = tmp_path / "tools.json"
        path.write_text(content)
        with scripted_server(["one"]) as server:
            code, out, err = chat(server, f"/tools {path}\nHi\n")
            assert (code, out, err.count("\n")) == (0, "one\n", 1)
            assert words in err
            assert "<|tool>" not in server.prompts[0]
            code, out, err = chat(server, "Hi\n", "--tools", str(path))  # at the start there is no session yet
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert words in err

    def test_the_input_ends_where_a_result_is_due(self, chat: Chat, tools_file: Path) -> None:
        with scripted_server([CALL]) as server:
            assert chat(server, "Weather?\n", "--tools", str(tools_file))[0] == 0

    def test_an_answer_that_fails(self, chat: Chat) -> None:
        with scripted_server(["one two three four"]) as server:
            server.engine.fail_after = 2
            code, _, err = chat(server, "Hi\n")
            assert (code, err.count("\n")) == (0, 1)
            assert "error: " in err


class TestServersAtAUrl:
    def test_nobody_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["chat", "--url", "http://127.0.0.1:1"]) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: http://127.0.0.1:1 cannot be reached: Connection refused. Start a server")
        assert message.count("\n") == 1

    @pytest.mark.parametrize("url", ["http://", "ftp://x", "http://a:b"])
    def test_no_url(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["chat", "--url", url]) == 2
        assert "URL" in capsys.readouterr().err

    def test_another_model(self, chat: Chat) -> None:
        with scripted_server(["one"]) as server:
            code, _, err = chat(server, "", "other")
            assert code == 2
            assert f"has no model other; it has {MODEL}." in err
            assert chat(server, "Hi\n", MODEL) == (0, "one\n", "")

    def test_a_key(self, chat: Chat) -> None:
        with scripted_server(["one"], api_key=("secret",)) as server:
            code, _, err = chat(server, "Hi\n")
            assert code == 2
            assert "give it with --api-key" in err
            assert chat(server, "Hi\n", "--api-key", "secret") == (0, "one\n", "")

    def test_a_path_that_is_not_there(self) -> None:
        with scripted_server(["one"]) as server, pytest.raises(ConfigError, match="has no /v2/nothing for this"):
            ApiClient.at_url(server.url).get("/v2/nothing")

    def test_a_stream_that_breaks_off(self) -> None:
        with scripted_server(["one two three"]) as server:
            server.engine.fail_after = 2
            stream = ApiClient.at_url(server.url).stream(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}
            )
            with pytest.raises(ServerFailedError, match="held NaN"):
                list(stream)


class TestAnswersOfOtherServers:
    def test_thoughts_under_either_name_and_calls_without_ids(self) -> None:
        def event(**delta: object) -> dict[str, object]:
            return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

        events = [
            event(role="assistant", content=""),
            event(reasoning="a"),
            event(reasoning_content="b"),
            event(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": '{"x"'}}]),
            event(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
            event(tool_calls=[{"index": 1, "id": "z", "function": {"name": "g"}}]),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
            {"choices": [], "usage": {"total_tokens": 3}},
        ]
        answer = ChatAnswer()
        list(answer.read(events))
        assert (answer.reply.content, answer.reply.reasoning, answer.finish_reason) == (None, "ab", "tool_calls")
        calls = answer.message()["tool_calls"]
        assert [call["id"] for call in calls] == ["call_0", "z"]
        assert [call["function"] for call in calls] == [
            {"name": "f", "arguments": '{"x":1}'},
            {"name": "g", "arguments": ""},
        ]

    def test_a_call_that_was_cut_off_is_none(self) -> None:
        answer = ChatAnswer()
        event = {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]}
        list(answer.read([event, {"choices": [{"delta": {}, "finish_reason": "length"}]}]))
        assert not answer.calls_to_make
        assert "tool_calls" not in answer.message()


class TestCommandsAlone:
    def test_help_names_them_all(self) -> None:
        text = run_command("/help", Conversation("m"))
        for name in ("/tools", "/think", "/system", "/set", "/clear", "/help", "/exit", "temperature"):
            assert name in text

    @pytest.mark.parametrize("content", [WEATHER, [WEATHER], WEATHER["function"], [WEATHER["function"]]])
    def test_tools_as_the_page_takes_them(self, tmp_path: Path, content: object) -> None:
        path = tmp_path / "tools.json"
        path.write_text(json.dumps(content))
        conversation = Conversation(MODEL)
        assert run_command(f"/tools {path}", conversation) == "Tools: weather."
        assert conversation.tools == [WEATHER]

    def test_tools_are_listed_and_taken_away(self, tools_file: Path) -> None:
        conversation = Conversation("m")
        assert run_command(f"/tools {tools_file}", conversation) == "Tools: weather."
        assert run_command("/tools", conversation) == "Tools: weather."
        assert conversation.body()["tools"] == [WEATHER]
        run_command("/tools off", conversation)
        assert "tools" not in conversation.body()

    def test_a_bad_file_changes_nothing(self, tools_file: Path) -> None:
        conversation = Conversation("m")
        run_command(f"/tools {tools_file}", conversation)
        tools_file.write_text("{")
        with pytest.raises(UserError):
            run_command(f"/tools {tools_file}", conversation)
        assert conversation.tools == [WEATHER]


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color", "COLUMNS": "100"}
        command = [sys.executable, "-m", "facet", "chat", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
            preexec_fn=lambda: _take_terminal(theirs),
        )  # fmt: skip
        os.close(theirs)
        self.text, self._position = "", 0

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        """Until it has shown this, beyond what was waited for before."""
        deadline = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.text, self._position)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not come; so far: {self.text!r}"
            if select.select([self._ours], [], [], min(left, 1.0))[0]:
                self.read()
        self._position = found.end()

    def read(self) -> None:
        self.text += os.read(self._ours, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def _take_terminal(descriptor: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell has what it runs in the background ignore it


def test_on_a_terminal(tools_file: Path) -> None:
    thinking = "<|channel>thought\nwind<channel|>light"
    endless = "one two three four " * 100
    answers = [CALL, thinking, "\x1b]0;title\x07one", endless]
    with scripted_server(answers, seconds_per_turn=0.01) as server:
        terminal = Terminal("--url", server.url)
        try:
            terminal.wait_for(rf"{MODEL}, 4,096 tokens of context.*/exit leaves")
            terminal.type(f"/too\t {tools_file}\n")  # completed
            terminal.wait_for(r"Tools: weather\.")
            terminal.type("Weather?\n")
            terminal.wait_for(r"(?s)╭.* weather .*╮.*\"city\": \"Paris\".*╯.*result of weather> ")
            terminal.type("20 degrees\n")
            terminal.wait_for(r"\x1b\[2mwind\x1b\[0m\r\n")  # dim
            terminal.wait_for(r"light\r\n")
            terminal.type("Hi\n")
            terminal.wait_for(r"title.*one\r\n")  # a model's escape sequences are text
            assert "\x1b]0;" not in terminal.text
            terminal.type("Count.\n")
            terminal.wait_for("three")
            terminal.type("\x03")
            terminal.wait_for(r"\(stopped\)")
            deadline = time.monotonic() + 30
            while not server.engine.cancelled:
                assert time.monotonic() < deadline, "the server still answers"
                time.sleep(0.01)
            terminal.wait_for("> ")  # before, it would stop the same answer once more
            # The second one leaves. Python misses it where it comes after the prompt and before the wait for a key.
            deadline = time.monotonic() + 30
            while terminal.process.poll() is None and time.monotonic() < deadline:
                terminal.type("\x03")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    terminal.process.wait(timeout=3)
            assert terminal.process.poll() == 0
            with contextlib.suppress(OSError):  # it has said nothing more
                terminal.read()
            assert "Traceback" not in terminal.text
            assert "Press Ctrl-C again" not in terminal.text
        finally:
            terminal.close()
