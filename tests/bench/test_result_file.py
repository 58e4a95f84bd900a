"""What --save-result leaves behind."""

import json
import re
from pathlib import Path

import pytest

from facet.bench.config import BenchConfig
from facet.bench.serve import bench_serve
from facet.errors import ConfigError
from tests.bench.fake_server import Call, fake_server
from tests.bench.small_runs import SMALL, Bench, complete


class TestResultFile:
    def test_what_is_in_it(self, bench: Bench, tmp_path: Path) -> None:
        settings = dict(save_result=True, result_dir=str(tmp_path / "new"), metadata=("version=1", "note=a=b"))
        code, _, err, _ = bench(complete, api_key="secret", header=("X-Key=secret",), max_concurrency=2, **settings)
        assert code == 0
        (path,) = (tmp_path / "new").iterdir()
        assert re.fullmatch(r"openai-infqps-concurrency2-m-\d{8}-\d{6}\.json", path.name)
        assert str(path) in err
        assert "secret" not in path.read_text()
        result = json.loads(path.read_text())
        assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 24)
        assert (result["version"], result["note"], result["request_rate"]) == ("1", "a=b", "inf")
        assert (result["model_id"], result["max_concurrency"], result["num_prompts"]) == ("m", 2, 6)
        for metric in ("ttft", "tpot", "itl", "e2el"):
            for statistic in ("mean", "median", "std", "p99"):
                assert result[f"{statistic}_{metric}_ms"] >= 0
        assert result["output_throughput"] == pytest.approx(24 / result["duration"])
        assert "ttfts" not in result

    def test_details(self, bench: Bench, tmp_path: Path) -> None:
        async def answer(call: Call) -> None:
            await (call.json(500, "no") if call.asked.number == 2 else call.completion())

        name = dict(save_result=True, save_detailed=True, result_dir=str(tmp_path), result_filename="x.json")
        bench(answer, max_concurrency=1, ramp_up_strategy="linear", ramp_up_start_rps=50, ramp_up_end_rps=60, **name)
        result = json.loads((tmp_path / "x.json").read_text())
        assert result["output_lens"] == [4, 0, 4, 4, 4, 4]
        assert [len(gaps) for gaps in result["itls"]] == [3, 0, 3, 3, 3, 3]
        assert result["errors"][1] == "HTTP 500: no"
        assert result["generated_texts"][0] == " word word word word"
        assert (result["ramp_up_strategy"], result["ramp_up_end_rps"]) == ("linear", 60)

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        """Said before anything is sent."""
        (tmp_path / "file").write_text("")
        with (
            fake_server(complete) as server,
            pytest.raises(ConfigError, match=r"--result-dir: .*/file cannot be written to"),
        ):
            bench_serve(BenchConfig(port=server.port, save_result=True, result_dir=str(tmp_path / "file"), **SMALL))
        assert server.asked == []

    def test_a_disk_that_is_full_by_then(
        self, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The table is printed all the same."""

        async def answer(call: Call) -> None:
            (tmp_path / "x.json").mkdir(exist_ok=True)
            await call.completion()

        with pytest.raises(ConfigError, match=r"cannot be written to .*x\.json: Is a directory"):
            bench(answer, save_result=True, result_dir=str(tmp_path), result_filename="x.json")
        assert re.search(r"Successful requests: +6\b", capsys.readouterr().out)
