"""Metrics under vLLM's names, and the dashboard that reads them."""

import json
import re
from pathlib import Path

from tests.server.conftest import Scripted
from tests.server.running import RunningServer

ASK = {"messages": [{"role": "user", "content": "one"}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LABELS = '{engine="0",model_name="tiny"}'
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def metrics_of(server: RunningServer) -> dict[str, float]:
    values = {}
    for row in server.get("/metrics").text.splitlines():
        if not row.startswith("#"):
            name, _, value = row.rpartition(" ")
            values[name] = float(value)
    return values


def test_metrics(scripted: Scripted) -> None:
    with scripted("one two three") as (server, engine):
        answer = server.post(CHAT, ASK).json()
        server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2})
        values = metrics_of(server)
    num_tokens = answer["usage"]["completion_tokens"]
    assert values[f"vllm:generation_tokens_total{LABELS}"] == num_tokens + 2
    lengths = sum(len(request.prompt_token_ids) for request in engine.submitted)
    assert values[f"vllm:prompt_tokens_total{LABELS}"] == lengths
    assert values[f"vllm:corrupted_requests_total{LABELS}"] == 3
    assert values[f"vllm:num_requests_running{LABELS}"] == 0
    assert values[f"vllm:time_to_first_token_seconds_count{LABELS}"] == 2
    assert values[f"vllm:inter_token_latency_seconds_count{LABELS}"] == num_tokens
    assert values[f"vllm:e2e_request_latency_seconds_count{LABELS}"] == 2
    assert values[f"vllm:request_generation_tokens_sum{LABELS}"] == num_tokens + 2
    for name, count in (("drafts", 5), ("draft_tokens", 10), ("accepted_tokens", 4)):
        assert values[f"vllm:spec_decode_num_{name}_total{LABELS}"] == count
    for place, count in enumerate((3, 1)):
        labels = LABELS.replace("}", f',position="{place}"}}')
        assert values[f"vllm:spec_decode_num_accepted_tokens_per_pos_total{labels}"] == count
    for reason in ("stop", "length"):
        name = f'vllm:request_success_total{{engine="0",finished_reason="{reason}",model_name="tiny"}}'
        assert values[name] == 1
    for name in ("num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total", "prefix_cache_hits_total"):
        assert f"vllm:{name}{LABELS}" in values


def test_where_prompts_came_from(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        usage = server.post(CHAT, ASK).json()["usage"]
        values = metrics_of(server)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    computed, found = (LABELS.replace("}", f',source="{name}"}}') for name in ("local_compute", "local_cache_hit"))
    assert cached > 0
    assert values[f"vllm:prompt_tokens_cached_total{LABELS}"] == cached
    assert values[f"vllm:prompt_tokens_by_source_total{found}"] == cached
    assert values[f"vllm:prompt_tokens_by_source_total{computed}"] == usage["prompt_tokens"] - cached
    assert values[f"vllm:request_prefill_kv_computed_tokens_sum{LABELS}"] == usage["prompt_tokens"] - cached


def test_failures_are_seen(scripted: Scripted) -> None:
    """By the kind of their status, and by route: a path that leads nowhere makes no label of its own."""

    def count(method: str, status: str, handler: str) -> float:
        return values.get(f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}}', 0)

    with scripted("one two", engine={"fail_after": 1}, api_key=("key",)) as (server, engine):
        key = {"authorization": "Bearer key"}
        assert server.post(CHAT, ASK, headers=key).status_code == 500
        assert server.post(CHAT, {**ASK, "n": 2, "stream": True}, headers=key).status_code == 200
        engine.fail_after = None
        assert server.post(CHAT, ASK, headers=key).status_code == 200
        assert server.post(CHAT, {**ASK, "temperature": -1}, headers=key).status_code == 400
        assert server.post(CHAT, ASK).status_code == 401
        for path in ("/v1/models/tiny", "/v1/models/else", "/made/up", "/health"):
            server.get(path, headers=key)
        assert server.get(CHAT, headers=key).status_code == 405
        values = metrics_of(server)
    assert [count("POST", status, CHAT) for status in ("2xx", "4xx", "5xx")] == [2, 2, 1]
    assert count("GET", "4xx", CHAT) == 1
    assert [count("GET", status, "/v1/models/{name:path}") for status in ("2xx", "4xx")] == [1, 1]
    assert count("GET", "4xx", "none") == 1
    assert sum(value for name, value in values.items() if name.startswith("http_requests_total")) == 9
    assert values[f'http_request_duration_seconds_count{{handler="{CHAT}",method="POST"}}'] == 5
    ends = {
        reason: f'{LABELS[:12]}finished_reason="{reason}",model_name="tiny"}}' for reason in ("error", "abort", "stop")
    }
    assert [values[f"vllm:request_success_total{labels}"] for labels in ends.values()] == [2, 1, 1]


def test_steps_by_their_size(scripted: Scripted) -> None:
    """As cumulative buckets: of 7 steps 3 have one token, 5 no more than 8, and one is larger than all bounds."""
    with scripted("one") as (server, _):
        values = metrics_of(server)
    name = "vllm:iteration_tokens_total"
    buckets = {
        key.split('le="')[1].split('"')[0]: value for key, value in values.items() if key.startswith(f"{name}_bucket")
    }
    assert [buckets[bound] for bound in ("1.0", "8.0", "16.0", "+Inf")] == [3, 5, 6, 7]
    assert (values[f"{name}_count{LABELS}"], values[f"{name}_sum{LABELS}"]) == (7, 60)
    assert (values[f"facet:num_steps_total{LABELS}"], values[f"facet:computed_tokens_total{LABELS}"]) == (7, 60)


def test_the_longest_answer_of_each_prompt(scripted: Scripted) -> None:
    """Two prompts with two answers each: one observation for a prompt, once its last answer has ended."""
    with scripted(lambda request: [281] * (2 + 3 * request.request_id.endswith("1"))) as (server, _):
        server.post(COMPLETIONS, {"prompt": ["x", "y"], "n": 2, "seed": 1, "max_tokens": 9})
        values = metrics_of(server)
    name = "vllm:request_max_num_generation_tokens"
    assert values[f"{name}_count{LABELS}"] == 2
    assert values[f"{name}_sum{LABELS}"] == 5 + 2  # the fourth request's id ends in 3
    assert values[f"vllm:request_generation_tokens_count{LABELS}"] == 4


def test_the_cache_and_the_process(scripted: Scripted) -> None:
    with scripted("one", kv_cache_dtype="fp8", max_step_ms=50.0) as (server, _):
        text, values = server.get("/metrics").text, metrics_of(server)
    (line,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    for label in ('block_size="16"', 'cache_dtype="fp8"', 'num_gpu_blocks="10"', 'kv_cache_memory_bytes="10240"'):
        assert label in line
    assert line.endswith(" 1.0")
    assert "# TYPE vllm:cache_config_info gauge" in text
    assert (values[f"facet:short_steps_total{LABELS}"], values[f"facet:long_steps_total{LABELS}"]) == (2, 1)
    assert values["process_resident_memory_bytes"] > 1 << 20
    assert values["process_cpu_seconds_total"] > 0


def test_the_dashboard_reads_what_is_exported(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        server.post(CHAT, ASK)
        exported = {re.split("[{ ]", name)[0] for name in metrics_of(server)}
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    read = {name for text in expressions for name in re.findall(r"\b(?:(?:vllm|facet):|process_|http_)\w+", text)}
    ours = {"num_steps_total", "computed_tokens_total", "kv_cache_cached_perc", "kv_cache_blocks", "version_info"}
    assert {f"facet:{name}" for name in ours} <= exported
    assert not {f"vllm:{name}" for name in ours} & exported
    assert len(read) > 25
    assert read <= exported, sorted(read - exported)
    assert all(re.search(r"vllm:|facet:|process_|http_", text) for text in expressions)
