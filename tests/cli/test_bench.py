"""`facet bench`: the flags people bring along, exit codes, and one line for what a user can fix."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from facet.bench.config import BenchConfig
from facet.bench.offline_config import LatencyConfig, ThroughputConfig
from facet.cli import main, make_parser
from facet.cli.flags import config_from
from tests.bench.fake_server import Call, fake_server

SOURCE = Path(__file__).parents[2] / "src"
# A command line as vLLM's users have it.
VLLM_LINE = """bench serve --backend openai-chat --base-url http://10.0.0.1:9000 --endpoint /v1/chat/completions
 --model google/gemma-4-E4B-it --served-model-name gemma --tokenizer google/gemma-4-E4B-it --dataset-name sharegpt
 --dataset-path data.json --num-prompts 200 --max-concurrency 32 --request-rate 8.5 --burstiness 2 --seed 7
 --ignore-eos --num-warmups 3 --temperature 0 --top-p 0.9 --top-k 40 --extra-body {"min_tokens":5}
 --percentile-metrics ttft,e2el --metric-percentiles 50,99.9 --goodput ttft:200 tpot:30 --save-result
 --result-dir out --result-filename x.json --metadata version=1 tp=1 --disable-tqdm --ready-check-timeout-sec 60
 --random_input_len=9 --random-output-len 8 --random-range-ratio 0.2 --random-prefix-len 3"""


def parse(*arguments: str) -> BenchConfig:
    return config_from(make_parser().parse_args(["bench", "serve", *arguments]), BenchConfig)


def test_a_command_line_of_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("facet.bench.serve.bench_serve", lambda *arguments: seen.append(arguments) or 0)
    monkeypatch.setattr("facet.cli.bench._load_tokenizer", lambda name: name)
    assert main(VLLM_LINE.split()) == 0
    ((config, tokenizer),) = seen
    assert tokenizer == "google/gemma-4-E4B-it"
    assert (config.model, config.served_model_name) == ("google/gemma-4-E4B-it", "gemma")
    assert (config.request_rate, config.max_concurrency, config.random_input_len) == (8.5, 32, 9)
    assert config.goodput_limits == {"ttft": 200, "tpot": 30}
    assert (config.percentiles, config.shown_metrics) == ((50.0, 99.9), ("ttft", "e2el"))
    assert (config.metadata, config.extra_body) == (("version=1", "tp=1"), {"min_tokens": 5})


def test_defaults_are_vllms() -> None:
    config = parse()
    assert config == BenchConfig()
    assert (config.host, config.port, config.num_prompts, config.seed) == ("127.0.0.1", 8000, 1000, 0)
    assert (config.random_input_len, config.random_output_len, config.burstiness) == (1024, 128, 1.0)
    assert math.isinf(parse("--request-rate", "inf").request_rate)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-concurency", "5"), "Did you mean --max-concurrency?"),
        (("--backend", "tgi"), "tgi"),
        (("--num-prompts", "0"), "--num-prompts is 0; it must be 1 or more"),
        (("--max-concurrency", "-1"), "--max-concurrency is -1"),
        (("--request-rate", "0"), "--request-rate is 0.0; it must be above 0"),
        (("--request-rate", "nan"), "--request-rate is nan"),
        (("--burstiness", "-1"), "--burstiness"),
        (("--random-range-ratio", "1"), "--random-range-ratio"),
        (("--port", "70000"), "--port is 70000"),
        (("--dataset-name", "sharegpt"), "--dataset-path"),
        (("--dataset-path", "x"), "reads no file"),
        (("--dataset-name", "custom", "--dataset-path", "/none.jsonl"), "/none.jsonl cannot be read"),
        (("--dataset-name", "tools"), "--backend openai-chat"),
        (("--ramp-up-strategy", "linear"), "--ramp-up-start-rps"),
        (("--ramp-up-strategy", "linear", "--request-rate", "5"), "leave --request-rate out"),
        (("--ramp-up-end-rps", "5"), "need --ramp-up-strategy"),
        (("--percentile-metrics", "ttft,speed"), "not speed"),
        (("--metric-percentiles", "99,x"), "--metric-percentiles is 99,x"),
        (("--metric-percentiles", "101"), "--metric-percentiles is 101"),
        (("--goodput", "speed:5"), "--goodput speed:5"),
        (("--goodput", "ttft=5"), "--goodput ttft=5"),
        (("--metadata", "version"), "KEY=VALUE"),
        (("--header", "X=1\r\nY: 2"), "KEY=VALUE"),
        (("--api-key", "é"), "--api-key"),
        (("--extra-body", "{"), "not JSON"),
        (("--base-url", "ftp://x"), "is not the URL of a server"),
        (("--tokenizer", "/nowhere"), "neither a folder nor"),
        (("--port", "1"), "No server answers at http://127.0.0.1:1"),
        (("--plot", "/nowhere/x.png"), "--plot"),
        (("--save-result", "--result-dir", "/dev/null/x"), "--result-dir: /dev/null/x cannot be written to: Not a dir"),
        (("--save-result", "--result-filename", "/"), "--save-result: / cannot be written to: Is a directory."),
    ],
    ids=str,
)
def test_what_is_refused(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", "serve", *arguments])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    message = capsys.readouterr().err
    assert code == 2
    assert words in message
    assert message.count("\n") == 1


def test_comparing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json")]
    for path, rate in zip(paths, (10.0, 15.0), strict=True):
        path.write_text(json.dumps({"duration": 1.0, "request_throughput": rate, "num_prompts": rate}))
    assert main(["bench", "compare", *map(str, paths)]) == 0
    out = capsys.readouterr().out
    assert "1.500" in out
    assert "Not the same load: num_prompts" in out
    for arguments in ([str(paths[0])], [str(paths[0]), str(tmp_path / "none.json")]):
        assert main(["bench", "compare", *arguments]) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_as_a_process(tmp_path: Path) -> None:
    """Once for real: one good run, one with a failure in it."""

    async def answer(call: Call) -> None:
        await (call.json(500, "no") if call.asked.number == 8 else call.completion())

    command = [sys.executable, "-m", "facet", "bench", "serve", "--num-prompts", "4", "--random-output-len", "3"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with fake_server(answer) as server:
        for expected in (0, 1):
            done = subprocess.run(
                [*command, "--port", str(server.port), "--random-input-len", "4"],
                **dict(capture_output=True, text=True, timeout=120, env=environment, check=False),
            )
            assert done.returncode == expected, done.stderr
            assert "Successful requests:                     " + ("3" if expected else "4") in done.stdout
            assert done.stderr == ("HTTP 500: no\n" if expected else "")


class TestOffline:
    """`facet bench throughput` and `latency` up to the engine; tests/bench/test_offline.py goes on from there."""

    @staticmethod
    def seen_by(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
        seen: list[Any] = []

        def listen(*given: Any) -> int:
            seen.append(given)
            return 0

        monkeypatch.setattr("facet.cli.bench._load_engine", lambda config: "engine")
        for name in ("throughput", "latency"):
            monkeypatch.setattr(f"facet.bench.{name}.bench_{name}", listen)
        assert main(["bench", *arguments]) == 0
        ((config, engine),) = seen
        assert engine == "engine"
        return config

    def test_a_throughput_line_of_vllms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        line = """throughput --model google/gemma-4-E4B-it --dataset-name random --input-len 512 --output-len 64
 --num-prompts 50 --n 2 --random-range-ratio 0.1 --prefix-len 5 --max-model-len 4096 --load-format dummy
 --kv-cache-dtype fp8 --enforce-eager --max_num_seqs=16 --no-enable-prefix-caching --disable-detokenize --seed 3"""
        config = self.seen_by(monkeypatch, *line.split())
        assert isinstance(config, ThroughputConfig)
        assert (config.model, config.input_len, config.output_len, config.n) == ("google/gemma-4-E4B-it", 512, 64, 2)
        settings = config.engine_settings
        assert "model" not in settings
        assert (settings["max_num_seqs"], settings["enable_prefix_caching"], settings["seed"]) == (16, False, 3)
        assert (settings["kv_cache_dtype"], settings["enforce_eager"]) == ("fp8", True)
        assert not config.sampling(5).detokenize

    def test_a_latency_line_of_vllms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        line = "latency m --input-len 16 --output-len 4 --batch-size 3 --num-iters-warmup 1 --num-iters 2"
        override = ["--override-generation-config", '{"temperature": 0, "top_k": 5}']
        config = self.seen_by(monkeypatch, *line.split(), *override)
        assert isinstance(config, LatencyConfig)
        assert (config.model, config.batch_size, config.num_iters, config.num_iters_warmup) == ("m", 3, 2, 1)
        assert not config.enable_prefix_caching
        sampling = config.sampling(4)
        assert (sampling.temperature, sampling.top_k, sampling.max_tokens, sampling.ignore_eos) == (0, 5, 4, True)

    def test_defaults_are_vllms(self, monkeypatch: pytest.MonkeyPatch) -> None:
        latency = self.seen_by(monkeypatch, "latency", "m")
        lengths = (latency.input_len, latency.output_len, latency.batch_size)
        assert (*lengths, latency.num_iters_warmup, latency.num_iters) == (32, 128, 8, 10, 30)
        sampling = latency.sampling(128)
        assert (sampling.n, sampling.temperature, sampling.top_p, sampling.detokenize) == (1, 1.0, 1.0, True)
        throughput = self.seen_by(monkeypatch, "throughput", "m")
        assert (throughput.num_prompts, throughput.dataset, throughput.enable_prefix_caching) == (1000, "random", True)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("throughput", ""), "No model was named"),
            (("throughput", "m", "--model", "o"), "Two models are named"),
            (("throughput", "/none"), "/none"),
            (("throughput", "m", "--num-prompts", "0"), "--num-prompts is 0; it must be 1 or more"),
            (("throughput", "m", "--input-len", "-5"), "--input-len is -5"),
            (("throughput", "m", "--random-range-ratio", "1"), "--random-range-ratio"),
            (("throughput", "m", "--dataset-name", "custom"), "--dataset-path"),
            (("throughput", "m", "--dataset-path", "/none.json"), "/none.json cannot be read"),
            (("throughput", "m", "--dataset-path", __file__, "--input-len", "5"), "--input-len is for random prompts"),
            (("throughput", "m", "--dataset-name", "random", "--dataset-path", "x"), "reads no file"),
            (("throughput", "m", "--max-model-len", "1000"), "up to 1152 tokens, but the context is 1000"),
            (
                (
                    "throughput",
                    "m",
                    "--input-len=100",
                    "--output-len=10",
                    "--random-range-ratio=0.5",
                    "--max-model-len=164",
                ),
                "up to 165 tokens",
            ),
            (("throughput", "m", "--output-json", "/nowhere/x.json"), "--output-json /nowhere/x.json"),
            (("latency", "m", "--batch-size", "0"), "--batch-size is 0"),
            (("latency", "m", "--num-iters", "0"), "--num-iters is 0"),
            (("latency", "m", "--num-iters-warmup", "-1"), "--num-iters-warmup is -1; it must be 0 or more"),
            (("latency", "m", "--max-model-len", "100"), "up to 160 tokens, but the context is 100"),
            (("latency", "m", "--n", "0"), "--n is 0"),
            (("latency", "m", "--override-generation-config", '{"max_new_tokens": 5}'), "--output-len"),
            (("latency", "m", "--override-generation-config", '{"top_p": 7}'), "top_p"),
            (("latency", "m", "--batch-sise", "4"), "Did you mean --batch-size?"),
        ],
        ids=str,
    )
    def test_what_is_refused(self, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
        try:
            code = main(["bench", *arguments])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        message = capsys.readouterr().err
        assert code == 2
        assert words in message
        assert message.count("\n") == 1
