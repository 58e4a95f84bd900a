"""`facet bench throughput` and `latency` over an engine in this process: what they run, count, print and write."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from facet.bench.latency import latency_lines, latency_result
from facet.bench.throughput import throughput_lines
from facet.cli import main
from facet.offline.timed import TimedLLM, TimedRun
from tests.tiny_models import TinyModel

SETTINGS = ("--device=cpu", "--kv-cache-memory-bytes=16777216", "--max-model-len=256", "--disable-tqdm")


@pytest.fixture(scope="module")
def dummy_folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config and nothing else: neither weights nor a tokenizer."""
    folder = tmp_path_factory.mktemp("dummy")
    (folder / "config.json").write_bytes((tiny_model("gemma4_e2b_small").folder / "config.json").read_bytes())
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was given to the engine, with what came of it."""
    seen: list[tuple[Any, ...]] = []
    timed = TimedLLM.timed

    def listening(self: TimedLLM, prompts: Sequence[Any], sampling: Sequence[Any], **options: Any) -> TimedRun:
        run = timed(self, prompts, sampling, **options)
        seen.append((prompts, sampling, run))
        return run

    monkeypatch.setattr(TimedLLM, "timed", listening)
    return seen


def run(*arguments: str) -> int:
    return main(["bench", *arguments, *SETTINGS])


class TestThroughput:
    def test_token_ids_without_weights_or_tokenizer(
        self,
        dummy_folder: Path,
        calls: list[tuple[Any, ...]],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "result.json"
        code = run(
            *("throughput", str(dummy_folder), "--load-format=dummy", "--skip-tokenizer-init", "--input-len=20"),
            *("--output-len=6", "--prefix-len=4", "--num-prompts=9", "--n=2", f"--output-json={path}"),
        )
        assert code == 0
        ((prompts, sampling, measured),) = calls
        assert [len(prompt) for prompt in prompts] == [24] * 9
        assert len({tuple(prompt[:4]) for prompt in prompts}) == 1
        assert len({tuple(prompt[4:]) for prompt in prompts}) == 9
        assert {settings.max_tokens for settings in sampling} == {6}
        assert (measured.num_prompt_tokens, measured.num_output_tokens, measured.errors) == (9 * 24, 9 * 2 * 6, ())
        lines = capsys.readouterr().out.splitlines()
        pattern = r"Throughput: ([\d.]+) requests/s, ([\d.]+) total tokens/s, ([\d.]+) output tokens/s"
        found = re.fullmatch(pattern, lines[0])
        assert found is not None, lines
        numbers = [float(number) for number in found.groups()]
        assert numbers == pytest.approx([count / measured.seconds for count in (9, 324, 108)], abs=0.01)
        assert lines[1:] == ["Total num prompt tokens:  216", "Total num output tokens:  108"]
        result = json.loads(path.read_text())
        assert (result["num_requests"], result["total_num_tokens"], result["failed"]) == (9, 324, 0)
        assert result["elapsed_time"] == measured.seconds
        assert result["tokens_per_second"] == pytest.approx(324 / measured.seconds)

    def test_prompts_from_a_file(
        self,
        model_folder: Path,
        calls: list[tuple[Any, ...]],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Text and token ids; one that is too long and one that is no prompt are left out, and said so."""
        entries = [
            {"prompt": "one two three", "max_tokens": 3},
            {"prompt": [300, 301, 302], "max_tokens": 2},
            {"messages": [{"role": "user", "content": "x"}]},
            {"prompt": [300] * 250, "max_tokens": 7},
        ]
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(map(json.dumps, entries)))
        flags = ("--dataset-name=custom", f"--dataset-path={path}", "--num-prompts=3")
        assert run("throughput", str(model_folder), *flags) == 1
        ((prompts, sampling, measured),) = calls
        assert prompts == ["one two three", [300, 301, 302]]
        assert [settings.max_tokens for settings in sampling] == [3, 2]
        assert measured.num_output_tokens == 5
        out, err = capsys.readouterr()
        assert f"{path}, line 3: messages need a chat" in err
        assert out.startswith("Throughput: ")
        assert (
            "1 of 3 prompts are left out: with their answers they have up to 257 tokens, and the context is 256" in err
        )

    def test_text_without_a_tokenizer(
        self, dummy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text('{"prompt": "one"}')
        flags = ("--dataset-name=custom", f"--dataset-path={path}", "--num-prompts=1")
        assert run("throughput", str(dummy_folder), "--load-format=dummy", "--skip-tokenizer-init", *flags) == 2
        assert "leave --skip-tokenizer-init out" in capsys.readouterr().err

    def test_a_failed_answer_is_told_by_the_exit_code(
        self, dummy_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        failed = TimedRun(seconds=2.0, num_prompt_tokens=10, num_output_tokens=4, errors=("NaN in the logits",))
        monkeypatch.setattr(TimedLLM, "timed", lambda *given, **options: failed)
        arguments = (str(dummy_folder), "--load-format=dummy", "--skip-tokenizer-init", "--input-len=5")
        assert run("throughput", *arguments, "--num-prompts=2") == 1
        assert "1 answers failed, the first with: NaN in the logits" in capsys.readouterr().err
        assert run("latency", *arguments) == 1
        assert "Avg" not in capsys.readouterr().out

    @pytest.mark.parametrize("command", ["throughput", "latency"])
    def test_a_result_that_cannot_be_written_is_printed(
        self,
        dummy_folder: Path,
        command: str,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Known before the run where it can be, and else printed before the error."""
        path = tmp_path / "result.json"

        def timed(*given: object, **options: object) -> TimedRun:
            path.mkdir(exist_ok=True)
            return TimedRun(seconds=2.0, num_prompt_tokens=10, num_output_tokens=4, errors=())

        monkeypatch.setattr(TimedLLM, "timed", timed)
        arguments = (command, str(dummy_folder), "--load-format=dummy", "--skip-tokenizer-init", "--input-len=5")
        assert run(*arguments, "--output-json=/proc/result.json") == 2
        assert "--output-json: /proc cannot be written to: " in capsys.readouterr().err
        assert run(*arguments, f"--output-json={path}") == 2
        out, err = capsys.readouterr()
        assert ("Throughput: " if command == "throughput" else "Avg latency: ") in out
        assert "The result cannot be written to " in err

    def test_the_lines(self) -> None:
        measured = TimedRun(seconds=4.0, num_prompt_tokens=1000, num_output_tokens=500)
        assert list(throughput_lines(measured, 10)) == [
            "Throughput: 2.50 requests/s, 375.00 total tokens/s, 125.00 output tokens/s",
            "Total num prompt tokens:  1000",
            "Total num output tokens:  500",
        ]


class TestLatency:
    def test_one_batch_again_and_again(
        self,
        dummy_folder: Path,
        calls: list[tuple[Any, ...]],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "result.json"
        code = run(
            *("latency", str(dummy_folder), "--load-format=dummy", "--skip-tokenizer-init", "--input-len=7"),
            *("--output-len=5", "--batch-size=3", "--num-iters-warmup=1", "--num-iters=4", f"--output-json={path}"),
        )
        assert code == 0
        assert len(calls) == 5
        assert all(prompts == calls[0][0] for prompts, _, _ in calls)
        assert [len(prompt) for prompt in calls[0][0]] == [7, 7, 7]
        assert {(run.num_prompt_tokens, run.num_output_tokens) for _, _, run in calls} == {(21, 15)}
        measured = [run.seconds for _, _, run in calls[1:]]
        assert json.loads(path.read_text()) == latency_result(measured)
        assert capsys.readouterr().out.splitlines() == list(latency_lines(measured))

    def test_the_lines(self) -> None:
        lines = list(latency_lines([1.0, 2.0, 3.0, 4.0, 5.0]))
        assert lines[0] == "Avg latency: 3.0 seconds"
        assert lines[1] == f"Std latency: {2**0.5} seconds"
        assert [line.split("%")[0] for line in lines[2:]] == ["10", "25", "50", "75", "90", "99"]
        assert lines[4] == "50% percentile latency: 3.0 seconds"

    def test_the_models_own_context_is_the_limit(self, dummy_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Where no flag says it, only the loaded model knows."""
        arguments = ["bench", "latency", str(dummy_folder), "--load-format=dummy", "--skip-tokenizer-init"]
        assert main([*arguments, "--device=cpu", "--input-len=100000000", "--num-iters=1", "--disable-tqdm"]) == 2
        assert "tokens, but the context is" in capsys.readouterr().err
