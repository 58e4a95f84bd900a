"""Engines whose model ranks share: the same answers, and an end that nobody waits through."""

import contextlib
import os
import queue
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from facet.config import EngineConfig
from facet.engine.client import RemoteEngine
from facet.engine.engine import Engine
from facet.engine.local_engine import LocalEngine
from facet.engine.ranks import LeadingRunner, follow
from facet.errors import ConfigError, EngineDeadError
from facet.kv_cache.accountant import need_of
from facet.layers.rank_group import RankGroup
from facet.model.loader import load_model
from tests.engine.harness import Answer, kv_layout, make_engine, run
from tests.engine.test_plans_as_bytes import LONG_ANSWER, busy_requests
from tests.engine.test_process import SETTINGS, collect, is_running, request
from tests.model.paged_model import load
from tests.quick_starts import quick_starts
from tests.ranks import on_ranks
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder

NUM_KILLS = int(os.environ.get("FACET_RANK_KILLS", "5"))


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for path in tiny_model("gemma4_e2b_small").folder.iterdir():
        (folder / path.name).symlink_to(path)
    write_tokenizer_folder(folder)
    return folder


def test_ranks_answer_as_one_does(folder: Path) -> None:
    """Grammars, penalties, log-probabilities, shared prefixes, and too little memory for everybody at once."""
    requests = busy_requests()[::2]
    whole = make_engine(load(folder, max_model_len=512).model)
    expected = run(Engine(whole.runner, whole.settings, folder), requests)
    longest = max(len(request.prompt_token_ids) for request in requests) + LONG_ANSWER
    num_blocks = 2 * need_of(kv_layout(whole.runner.model), 2, num_tokens=longest).num_blocks
    steps: queue.Queue[bytes | None] = queue.Queue()

    def answers(group: RankGroup) -> dict[str, Answer]:
        config = EngineConfig(model=str(folder), device="cpu", language_model_only=True, max_model_len=512)
        model = load_model(config, group=group).model
        engine = make_engine(model, num_blocks=num_blocks, max_num_seqs=12, max_num_batched_tokens=24)
        if not group.rank.plans:
            follow(engine.runner, steps.get)  # type: ignore[arg-type]
            return {}
        leading = Engine(LeadingRunner(engine.runner, steps.put), engine.settings, folder)  # type: ignore[arg-type]
        try:
            found = run(leading, requests)
        finally:
            steps.put(None)
        assert leading.stats().scheduler.num_preemptions > 0
        assert leading.stats().scheduler.cache.num_prompt_tokens_hit > 0
        return found

    found, _ = on_ranks(2, answers)
    for name, answer in found.items():
        assert answer.token_ids == expected[name].token_ids
        assert answer.finish_reason == expected[name].finish_reason
        assert [entry.token_ids for entry in answer.logprobs] == [entry.token_ids for entry in expected[name].logprobs]


@pytest.fixture(scope="module")
def quickly() -> Iterator[None]:
    with quick_starts():
        yield


@pytest.fixture(scope="module")
def config(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), tensor_parallel_size=2, **SETTINGS)  # type: ignore[arg-type]


def test_ranks_in_processes_answer_as_one_process_does(quickly: None, config: EngineConfig) -> None:
    asked = [request("plain", 40, max_tokens=6), request("logprobs", 9, max_tokens=4, logprobs=3, prompt_logprobs=2)]
    local = LocalEngine(replace(config, tensor_parallel_size=1))
    with contextlib.closing(RemoteEngine(config)) as remote:
        assert remote.info.lines[0].startswith("Tensor parallel over 2 ranks: heads, MLPs, embeddings and the KV cache")
        assert not addresses_of(remote.process_ids) - {"127.0.0.1"}
        answers = []
        for engine in (remote, local):
            for each in asked:
                engine.submit(each)
            answers.append(collect(engine, {each.request_id for each in asked}))
        process_ids = remote.process_ids
    tokens = [
        {name: [message.token_ids for message in messages] for name, messages in found.items()} for found in answers
    ]
    assert tokens[0] == tokens[1]
    assert not any(map(is_running, process_ids)), "nobody is left behind"


def addresses_of(process_ids: tuple[int, ...]) -> set[str]:
    """Where processes listen for connections over a network."""
    sockets = {
        os.readlink(path) for process_id in process_ids for path in Path(f"/proc/{process_id}/fd").iterdir()
        if path.is_symlink() and os.path.lexists(path)
    }  # fmt: skip
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            octets = bytes.fromhex(fields[1].partition(":")[0])
            found.add(".".join(str(octet) for octet in reversed(octets)))
    return found


@pytest.mark.parametrize("kill", range(NUM_KILLS))
def test_a_rank_that_is_killed(kill: int, quickly: None, config: EngineConfig) -> None:
    """At any moment: everyone hears of it at once, and nobody is left behind. `make soak` kills a hundred."""
    choose = random.Random(kill)
    with contextlib.closing(RemoteEngine(config)) as engine:
        if choose.random() < 0.8:
            engine.submit(request("doomed", 5, max_tokens=500))
            engine.receive(timeout=60)
        time.sleep(choose.random() / 10)
        victim = kill % 2
        os.kill(engine.process_ids[victim], signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDeadError, match=rf"rank {victim} was killed \(signal 9\)"):
            list(iter(engine.receive, None))  # without the news it would wait forever
        assert time.monotonic() - killed < 20, "that is not at once"  # a busy machine takes its time
        with pytest.raises(EngineDeadError):
            engine.submit(request("late", 5))
        process_ids = engine.process_ids
    assert not any(map(is_running, process_ids))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(tensor_parallel_size=3), "--tensor-parallel-size 3 does not divide .*Sizes that do: 1, 2, 4"),
        (dict(tensor_parallel_size=0), "--tensor-parallel-size is 0"),
        (dict(tensor_parallel_size=2, device="cuda"), "needs as many GPUs, but this machine shows"),
        (dict(tensor_parallel_size=2, device="cuda:1"), "--device cuda:1 names one GPU"),
    ],
)
def test_what_cannot_be(
    settings: dict[str, object], message: str, quickly: None, config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=message):
        RemoteEngine(replace(config, **settings))  # type: ignore[arg-type]
