"""Against Facet's own server: over a scripted engine for the counts, and once with the real engine and a tiny model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facet.bench.config import BenchConfig
from facet.bench.serve import bench_serve
from facet.config import ServerConfig
from facet.tokens import Tokenizer
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, running_with_engine


def result_of(folder: Path, server: RunningServer, tokenizer: Tokenizer | None = None, **settings: Any) -> Any:
    config = BenchConfig(
        **{
            **dict(base_url=server.url, disable_tqdm=True, num_prompts=5, random_input_len=30, random_output_len=9),
            **dict(vocab_size=480, save_result=True, result_dir=str(folder), result_filename="x.json"),
            **settings,
        }
    )
    assert bench_serve(config, tokenizer) == 0
    return json.loads((folder / "x.json").read_text())


class TestScripted:
    """What the server counts is what the client was asked to send and counts itself."""

    def test_token_ids(self, scripted: Scripted, tmp_path: Path) -> None:
        with scripted([300] * 50) as (server, engine):
            result = result_of(tmp_path, server, save_detailed=True)
        assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (5, 150, 45)
        assert [len(gaps) for gaps in result["itls"]] == [8] * 5
        assert [len(request.prompt_token_ids) for request in engine.submitted[1:]] == [30] * 5

    def test_text_with_a_tokenizer(self, scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path) -> None:
        with scripted([300] * 50) as (server, _):
            result = result_of(tmp_path, server, tokenizer, random_prefix_len=10)
        assert (result["total_input_tokens"], result["total_output_tokens"]) == (200, 45)

    def test_without_a_tokenizer_on_either_side(self, scripted: Scripted, tmp_path: Path) -> None:
        bare = {"tokenizer": None, "template": None}
        with scripted([300] * 50, model=bare, skip_tokenizer_init=True) as (server, _):
            result = result_of(tmp_path, server)
        assert (result["total_input_tokens"], result["total_output_tokens"]) == (150, 45)
        assert result["max_output_tokens_per_s"] > 0

    def test_chats_and_keys(self, scripted: Scripted, tmp_path: Path) -> None:
        with scripted("one two three", api_key=("secret",)) as (server, _):
            result = result_of(tmp_path, server, backend="openai-chat", api_key="secret", random_output_len=50)
        assert result["completed"] == 5
        assert result["total_output_tokens"] > 0
        assert result["answers_without_usage"] == 0


@pytest.fixture(scope="module")
def real_server(model_folder: Path) -> Iterator[RunningServer]:
    settings: dict[str, Any] = dict(device="cpu", kv_cache_memory_bytes=64 << 20, max_num_batched_tokens=512)
    config = ServerConfig(model=str(model_folder), served_model_name=("tiny",), disable_log_stats=True, **settings)
    with running_with_engine(config) as server:
        yield server


class TestRealEngine:
    def test_every_made_up_dataset(self, real_server: RunningServer, tmp_path: Path) -> None:
        result = result_of(tmp_path, real_server, max_concurrency=3)
        assert (result["completed"], result["total_input_tokens"], result["total_output_tokens"]) == (5, 150, 45)
        tools = dict(dataset_name="tools", backend="openai-chat", num_prompts=2, num_turns=2, random_input_len=10)
        result = result_of(tmp_path, real_server, **tools)
        assert result["completed"] == 4

    def test_sessions_find_what_was_said_in_the_cache(self, real_server: RunningServer, tmp_path: Path) -> None:
        settings = dict(dataset_name="sessions", num_prompts=2, num_turns=3, random_input_len=100, turn_input_len=10)
        result = result_of(tmp_path, real_server, seed=5, **settings)
        assert result["completed"] == 6
        assert result["total_input_tokens"] == 2 * (100 + 119 + 138)  # each answer is 9 tokens
        assert result["total_cached_tokens"] > 2 * (90 + 100)
