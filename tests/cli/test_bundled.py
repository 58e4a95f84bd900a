"""The bundled model: every command finds it, it is checked before it is used, and a fault is one line with advice."""

import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from facet import LLM, SamplingParams, bundled_model
from facet.bundled_model import RECORD, find_bundled_model, record_bundled_model
from facet.cli import main
from facet.errors import CheckpointError
from tests.cli.bundle import command_with, environment, write_bundle


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_bundle(tmp_path / "bundled")
    monkeypatch.setattr(bundled_model, "FOLDER", folder)
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    return err


class TestWhetherItIsWhole:
    def test_a_whole_one(self, bundle: Path) -> None:
        assert find_bundled_model() == bundle
        assert find_bundled_model(bundle) == bundle

    def test_the_record_names_every_file(self, bundle: Path) -> None:
        record = json.loads((bundle / RECORD).read_text())
        assert set(record) == {path.name for path in bundle.iterdir()} - {RECORD}
        assert record["config.json"]["bytes"] == (bundle / "config.json").stat().st_size
        assert re.fullmatch("[0-9a-f]{64}", record["model.safetensors"]["sha256"])

    def test_recording_again_is_the_same(self, bundle: Path) -> None:
        before = (bundle / RECORD).read_bytes()
        assert record_bundled_model(bundle).read_bytes() == before

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
            (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json has 2 bytes instead of"),
            (lambda folder: _flip(folder / "model.safetensors"), "model.safetensors has been changed"),
            (lambda folder: (folder / RECORD).unlink(), "bundled.json is missing"),
            (lambda folder: (folder / RECORD).write_text("{"), "bundled.json cannot be read"),
            (lambda folder: (folder / RECORD).write_text("[]"), "bundled.json lists no files"),
            (lambda folder: (folder / RECORD).write_text('{"config.json": 3}'), "config.json is not described"),
        ],
    )
    def test_a_damaged_one(self, bundle: Path, damage: Callable[[Path], Any], words: str) -> None:
        damage(bundle)
        with pytest.raises(CheckpointError) as caught:
            find_bundled_model()
        assert str(caught.value).startswith("The bundled model is damaged: ")
        assert words in str(caught.value)
        assert "Install facet-llm again, or name a model" in str(caught.value)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


class TestCommands:
    @pytest.mark.parametrize(
        "command",
        ["serve", "chat", "complete x", "inspect", "plan", "doctor", "bench throughput", "bench latency"],
    )
    def test_none_there(
        self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(bundled_model, "FOLDER", tmp_path / "none")
        message = refusal(capsys, *command.split())
        assert "No model was named, and the bundled one is missing" in message
        assert "Install facet-llm again, or name a model" in message

    @pytest.mark.parametrize("command", ["serve", "inspect"])
    def test_a_damaged_one(self, command: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _flip(bundle / "model.safetensors")
        assert "The bundled model is damaged" in refusal(capsys, command)

    @pytest.mark.parametrize("command", ["serve", "inspect", "plan", "bench throughput"])
    def test_an_empty_name_is_a_mistake(self, command: str, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """As in `facet serve "$MODEL"` where the variable is not set."""
        assert "No model was named" in refusal(capsys, *command.split(), "")

    def test_an_empty_name_in_a_chat(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "The model's name is empty" in refusal(capsys, "chat", "")

    def test_inspect(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect"]) == 0
        assert "All tensors are present" in capsys.readouterr().out

    def test_plan(self, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plan", "--gpu-memory", "4GiB"]) == 0
        assert "Gemma4ForCausalLM" in capsys.readouterr().out.replace("\n", "")

    @pytest.mark.parametrize(
        ("command", "place"),
        [
            ("doctor", "facet.doctor.examine.examine"),
            ("bench throughput", "facet.bench.throughput.bench_throughput"),
            ("bench latency", "facet.bench.latency.bench_latency"),
            ("serve", "facet.server.run.serve"),
        ],
    )
    def test_what_is_asked_of_others(
        self, command: str, place: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Seen(Exception):
            pass

        def see(config: Any, *_: object, **__: object) -> None:
            raise Seen(config)

        monkeypatch.setattr(place, see)
        monkeypatch.setattr("facet.cli.bench._load_engine", lambda config: None)
        with pytest.raises(Seen) as caught:
            main(command.split())
        config = caught.value.args[0]
        assert config.model == str(bundle)
        if command == "serve":
            assert config.served_model_name == ("facet",)

    def test_a_name_of_ones_own(self, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[Any] = []
        monkeypatch.setattr("facet.server.run.serve", lambda config, **_: seen.append(config) or 0)
        assert main(["serve", "--served-model-name", "mine"]) == 0
        assert seen[0].served_model_name == ("mine",)


def test_from_the_first_command_to_the_first_answer(tmp_path: Path) -> None:
    """`facet serve` and nothing else, but for a port that is free."""
    bundle = write_bundle(tmp_path / "bundled")
    command = command_with(bundle, "serve", "--host", "127.0.0.1", "--port", "0", "--device", "cpu")
    command += ["--kv-cache-memory-bytes", str(32 << 20)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    timer = threading.Timer(90, process.kill)
    timer.start()
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"Serving facet on (http://127\.0\.0\.1:\d+)", line):
                break
        else:
            pytest.fail("".join(lines))
        with httpx.Client(base_url=found[1], timeout=60) as client:
            (model,) = client.get("/v1/models").json()["data"]
            assert (model["id"], model["max_model_len"]) == ("facet", 4096)
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}
            answer = client.post("/v1/chat/completions", json=body).json()
            assert (answer["model"], answer["usage"]["completion_tokens"]) == ("facet", 4)
            # The port is taken now.
            port = found[1].rpartition(":")[2]
            second = subprocess.run(
                command_with(bundle, "serve", "--host", "127.0.0.1", "--port", port),
                capture_output=True, text=True, env=environment(), timeout=60,
            )  # fmt: skip
            assert (second.returncode, second.stderr) == (
                2,
                f"error: Cannot listen on 127.0.0.1:{port}: Address already in use. Choose another --port or --host.\n",
            )
    finally:
        timer.cancel()
        process.terminate()
        process.wait(timeout=60)
        process.stderr.close()


def test_in_python(bundle: Path) -> None:
    llm = LLM(device="cpu", kv_cache_memory_bytes=32 << 20, show_progress=False)
    (result,) = llm.generate("one two", SamplingParams(max_tokens=3, ignore_eos=True))
    assert len(result.outputs[0].token_ids) == 3


class TestModelsOfTheHub:
    """What is no bundled model and no folder, from the command line. Nothing here reaches a network."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Callable[..., str]:
        def run(command: str, **variables: str) -> str:
            # An address that refuses at once, in case the hub is asked after all.
            closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "cache")}
            done = subprocess.run(
                command_with(tmp_path, *command.split()),
                capture_output=True, text=True, env={**environment(), **closed, **variables}, timeout=100,
            )  # fmt: skip
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
            return done.stderr

        return run

    def test_the_hub_cannot_be_reached(self, run: Callable[..., str]) -> None:
        message = run("inspect google/gemma-4-E2B-it")
        assert message.startswith("error: google/gemma-4-E2B-it could not be downloaded (")
        assert "Check the network, or give the path of a folder." in message

    def test_told_to_stay_offline(self, run: Callable[..., str]) -> None:
        assert "Check the network" in run("complete x --model google/gemma-4-E2B-it", HF_HUB_OFFLINE="1")

    def test_a_cache_that_cannot_be_written(self, run: Callable[..., str], tmp_path: Path) -> None:
        # A file where a folder should be: root, as whom tests may run, has every permission.
        (tmp_path / "file").write_text("")
        message = run("inspect google/gemma-4-E2B-it", HF_HOME=str(tmp_path / "file"))
        assert "cannot be written (Not a directory)" in message
        assert "HF_HOME" in message
