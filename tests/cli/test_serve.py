"""`facet serve`: the flags people bring along, and once for real: start, answer, drain, stop."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from facet.cli import main, make_parser
from facet.cli.flags import config_from
from facet.config import ServerConfig
from facet.errors import ConfigError
from facet.server.run import bind, greeting, is_loopback, listening, with_key_of_environment
from tests.tiny_checkpoints import SHRUNK, write_config
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder

ON_RAY = ("--data-parallel-backend", "ray")
SOURCE = Path(__file__).parents[2] / "src"
# A command line as vLLM's users have it.
VLLM_LINE = """serve google/gemma-4-E4B-it --host 127.0.0.1 --port 9000 --api-key secret other --served-model-name a b
 --dtype bfloat16 --max-model-len 8192 --gpu-memory-utilization 0.8 --max-num-seqs 64 --max-num-batched-tokens 4096
 --tensor-parallel-size 1 --enable-prefix-caching --enable-chunked-prefill --kv-cache-dtype auto
 --kv-sharing-fast-prefill --async-scheduling --enforce-eager --seed 3 --enable-auto-tool-choice
 --tool-call-parser gemma4 --reasoning-parser gemma4 --generation-config vllm --trust-remote-code --disable-log-stats
 --revision main --load-format dummy --skip-tokenizer-init --max_logprobs=5 --no-enable-prefix-caching"""


def parse(*arguments: str) -> ServerConfig:
    return config_from(make_parser().parse_args(["serve", *arguments]), ServerConfig)


def test_a_command_line_of_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[ServerConfig] = []
    monkeypatch.setattr("facet.server.run.serve", lambda config, **_: served.append(config) or 0)
    assert main(VLLM_LINE.split()) == 0
    (config,) = served
    assert (config.model, config.port, config.max_model_len) == ("google/gemma-4-E4B-it", 9000, 8192)
    assert (config.api_key, config.served_model_name) == (("secret", "other"), ("a", "b"))
    assert (config.max_logprobs, config.enable_prefix_caching) == (5, False)


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ((), {}, ()),
        ((), {"FACET_API_KEY": "", "VLLM_API_KEY": "theirs"}, ("theirs",)),
        ((), {"FACET_API_KEY": "ours", "VLLM_API_KEY": "theirs"}, ("ours",)),
        (("--api-key", "given"), {"FACET_API_KEY": "ours"}, ("given",)),
    ],
)
def test_keys_of_the_environment(
    flags: tuple[str, ...], environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert with_key_of_environment(parse("m", *flags), environment).api_key == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("box", False)],
)
def test_which_addresses_others_can_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_flags_with_json_and_lists() -> None:
    config = parse(
        "m",
        *("--override-generation-config", '{"temperature": 0.5}'),
        *("--default-chat-template-kwargs", '{"enable_thinking": true}'),
        *("--limit-mm-per-prompt", '{"image": 2}'),
        *("--allowed-origins", '["http://a", "http://b"]'),
        *("--api-key", "one", "--api-key", "two"),
    )
    assert config.override_generation_config == {"temperature": 0.5}
    assert config.default_chat_template_kwargs == {"enable_thinking": True}
    assert config.allowed_origins == ("http://a", "http://b")
    assert config.api_key == ("one", "two")
    assert parse("m") == ServerConfig(model="m")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("",), "No model was named"),
        (("m", "--max-model-length", "5"), "Did you mean --max-model-len?"),
        (("m", "--pipeline-parallel-size", "2"), "--pipeline-parallel-size 2 is not possible"),
        (("m", "--kv-cache-dtype", "fp3"), "--kv-cache-dtype fp3"),
        (("m", "--kv-cache-dtype", "middle=fp8"), "'middle' is not a kind of layer"),
        (("m", "--no-enable-chunked-prefill"), "--no-enable-chunked-prefill"),
        (("m", "--tool-call-parser", "hermes"), "hermes"),
        (("m", "--override-generation-config", "{"), "not JSON"),
        (("m", "--override-generation-config", "[1]"), "not a JSON object"),
        (("m", "--allowed-origins", "[1]"), "not a JSON list"),
        (("m", "--port", "70000"), "--port is 70000"),
        (("m", "--max-step-ms", "0"), "--max-step-ms is 0, but must be more than 0."),
        (("m", "--max-num-seqs", "0"), "--max-num-seqs is 0, but must be 1 or more."),
        (("m", "--gpu-memory-utilization", "90"), "--gpu-memory-utilization is 90.0, but must be in (0, 1]."),
        (("m", "--enable-sleep-mode", "-dp", "2"), "--enable-sleep-mode works with --data-parallel-size 1 only"),
        (("m", "--lora-modules", "a=/x", "a=/y"), "--lora-modules names 'a' twice"),
        (("m", "--lora-modules", "a"), "--lora-modules a names no path"),
        (("m", "--lora-modules", '{"name": "a"}'), "missing required field `path`"),
        (("m", "--lora-modules", "m=/x"), "'m' is a name of the model. Give the adapter another one."),
        (("m", "--allowed-lora-path", "/nowhere"), "--allowed-lora-path /nowhere is no folder."),
        (
            ("m", "--allowed-lora-path", "/tmp", *ON_RAY),
            "--allowed-lora-path does not work with --data-parallel-backend ray",
        ),
        (("m", "--host", "203.0.113.1"), "Cannot listen on 203.0.113.1:8000"),
        (("m", "--uds", ""), "--uds is empty"),
        (("m", "--served-model-name", "a", ""), "--served-model-name has an empty name"),
        (("m", "--max-logprobs", "-2"), "--max-logprobs is -2, but must be 0 or more; -1: no limit."),
        (("m", "--request-timeout", "nan"), "--request-timeout is nan, but must be more than 0."),
        (("m", "--shutdown-timeout", "inf"), "--shutdown-timeout is inf, but must be a number of seconds from 0."),
        (("m", "--shutdown-timeout", "-1"), "--shutdown-timeout is -1"),
        (("m", "--api-key", ""), "API key 1 is empty"),
        (("m", "--api-key", "good", "a b\n"), "API key 2 has a blank, a line break or the like"),
        (("m", "--ssl-keyfile", "key.pem"), "--ssl-keyfile needs the certificate, too. Add --ssl-certfile."),
        (("m", "--ssl-ca-certs", "ca.pem"), "--ssl-ca-certs needs the certificate, too. Add --ssl-certfile."),
        (("m", "--ssl-cert-reqs", "3"), "--ssl-cert-reqs is 3, but must be 0 (clients need no certificate), 1"),
        (("m", "--ssl-certfile", "c.pem", "--ssl-cert-reqs", "2"), "--ssl-cert-reqs needs the authorities"),
        (("m", "--timeout-keep-alive", "0"), "--timeout-keep-alive is 0, but must be 1 or more."),
        (("m", "--ssl-certfile", "none.pem"), "--ssl-certfile none.pem cannot be used: No such file or directory."),
        (("m", "--ssl-certfile", __file__, "-dp", "2"), "Name PEM files with a certificate and its private key."),
    ],
    ids=str,
)
def test_what_is_refused(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["serve", *arguments])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    message = capsys.readouterr().err
    assert code == 2
    assert words in message
    assert message.count("\n") == 1


def test_what_can_be_refused_is_before_weights_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facet.server.run.EngineProcess", lambda *_, **__: pytest.fail("an engine was started"))
    folder = str(write_config(tmp_path, SHRUNK["Gemma 3 1B"]))
    own = ("serve", folder, "--host", "127.0.0.1", "--port", "0")
    write_tokenizer_folder(tmp_path)
    for flags, words in (
        (("--chat-template", "examples/tool_chat_template_gemma4.jinja"), "Leave it out to use the model's own"),
        (("--override-generation-config.temprature", "1"), "'temprature'"),
        (("--limit-mm-per-prompt.smell", "1"), "'smell'"),
        (("--structured-outputs-config.enable_in_reasoning", "true"), "'enable_in_reasoning': True"),
        (("--tokenizer", str(tmp_path / "none")), "neither a folder nor the name of a model"),
    ):
        assert main([*own, *flags]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "tokenizer.json").unlink()
    assert main([*own]) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_an_unusable_key_of_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACET_API_KEY", "of a file\n")
    assert main(["serve", "m"]) == 2
    message = capsys.readouterr().err
    assert "API key 1 has a blank, a line break or the like" in message
    assert "of a file" not in message, "it is a secret"


def test_as_many_files_as_clients_need() -> None:
    """In a process of its own: the limit could not be lowered again."""
    code = """if True:
        import resource
        from facet.server.open_files import raise_limit_of_files
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512))
        raise_limit_of_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, 512)
        raise_limit_of_files()
        """
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}, timeout=60)


def test_the_address_in_the_greeting() -> None:
    config = ServerConfig(model="m", host="::1", port=0)
    try:
        listener = bind(config)
    except ConfigError:
        pytest.skip("no IPv6 on this machine")
    with contextlib.closing(listener):
        assert greeting(config, ["m"], listener) == f"Serving m on http://[::1]:{listener.getsockname()[1]}"


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    config = ServerConfig(model="m", uds=str(path))
    with contextlib.closing(bind(config)) as first:
        first.listen()
        with pytest.raises(ConfigError, match="Address already in use"):
            bind(config)
    with contextlib.closing(bind(config)) as second:  # the file of a server that has ended is no obstacle
        assert second.getsockname() == str(path)
    with pytest.raises(ConfigError, match="no such model"), listening(config):
        raise ConfigError("no such model")  # while it is loaded
    assert not path.exists()
    path.write_text("not a socket")
    with pytest.raises(ConfigError, match="Cannot listen on"):
        bind(config)
    assert path.read_text() == "not a socket"


def test_from_start_to_stop(tiny_model: Callable[[str], TinyModel], tmp_path: Path) -> None:
    shutil.copytree(tiny_model("gemma4_e2b_served").folder, tmp_path, dirs_exist_ok=True)
    write_tokenizer_folder(tmp_path, adds_bos=True)
    command = [sys.executable, "-m", "facet", "serve", str(tmp_path), "--served-model-name", "tiny", "--port", "0"]
    command += ["--host", "127.0.0.1", "--device", "cpu", "--kv-cache-memory-bytes", str(32 << 20)]
    command += ["--enable-log-requests"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"Serving tiny on http://127\.0\.0\.1:(\d+)", line):
                break
        else:
            pytest.fail("".join(lines))
        port = int(found[1])
        body = {"prompt": "one two", "max_tokens": 200, "ignore_eos": True, "stream": True, "seed": 1}
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as response,
        ):
            events = response.iter_lines()
            next(events)
            loaded = Path(f"/proc/{process.pid}/maps").read_text()
            assert "libzmq" in loaded
            assert "libtorch" not in loaded, "the front process computes nothing"
            process.send_signal(signal.SIGTERM)  # in the middle of a stream
            remaining = [text.removeprefix("data: ") for text in events if text]
        assert remaining[-1] == "[DONE]"
        assert json.loads(remaining[-2])["choices"][0]["finish_reason"] == "length"
        timer = threading.Timer(30, process.kill)
        timer.start()
        lines += process.stderr.readlines()
        assert process.wait(timeout=30) == 0
        timer.cancel()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    text = "".join(lines)
    assert "KV cache:" in text
    assert "requests fit at once" in text
    assert "SIGTERM: finishing running requests" in text
    assert re.search(r"cmpl-\w+\[0\]: \d+ \+ 200 tokens, length", text)
    assert "Traceback" not in text
