"""The engine in a process of its own: the same answers, and a death that nobody waits through."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec
import pytest

from facet.config import EngineConfig
from facet.engine.client import EngineClient, RemoteEngine
from facet.engine.local_engine import LocalEngine
from facet.engine.messages import NewTokens, Refused
from facet.engine.rank_processes import LocalRanks, begun_early
from facet.errors import ConfigError, EngineDeadError, RequestError
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.tiny_models import TinyModel

SETTINGS = dict(device="cpu", max_model_len=512, debug_poison_freed_blocks=True, kv_cache_memory_bytes=8 << 20)


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], TinyModel]) -> EngineConfig:
    return EngineConfig(model=str(tiny_model("gemma4_e2b_small").folder), **SETTINGS)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def remote(config: EngineConfig) -> Iterator[RemoteEngine]:
    with contextlib.closing(RemoteEngine(config)) as engine:
        yield engine


def request(name: str, length: int, **sampling: object) -> Request:
    params = SamplingParams(temperature=0.0, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    return Request(request_id=name, prompt_token_ids=tuple(range(3, 3 + length)), sampling=params)


def collect(engine: EngineClient, names: set[str]) -> dict[str, list[NewTokens]]:
    answers: dict[str, list[NewTokens]] = {name: [] for name in names}
    while names:
        for answer in engine.receive(timeout=60):
            assert isinstance(answer, NewTokens)
            # How long it waited is the one thing that may differ.
            answers[answer.request_id].append(msgspec.structs.replace(answer, queue_seconds=0.0))
            if answer.finish_reason is not None:
                names = names - {answer.request_id}
    return answers


def test_both_sides_of_the_boundary_answer_alike(remote: RemoteEngine, config: EngineConfig) -> None:
    asked = [
        request("plain", 40, max_tokens=6),
        request("logprobs", 9, max_tokens=4, logprobs=3, prompt_logprobs=2),
        request("settings", 5, max_tokens=5, logit_bias={7: 3.0}, bad_words_token_ids=((9, 10),), stop_token_ids=(11,)),
    ]
    local = LocalEngine(config)
    num_sampled_before = remote.stats().num_sampled_tokens
    results: list[dict[str, Any]] = [{}, {}]
    for engine, result in zip((local, remote), results, strict=True):
        for item in asked:  # one by one: company may change the last bits, and who meets whom is a matter of time
            engine.submit(item)
            result |= collect(engine, {item.request_id})
    assert results[0] == results[1]
    assert len(results[1]["plain"]) == 6
    assert [part for part, _ in remote.info.start_times][:3] == ["imports", "files", "weights"]
    assert msgspec.structs.replace(remote.info, start_times=()) == local.info
    assert remote.stats().num_sampled_tokens - num_sampled_before == local.stats().num_sampled_tokens


def test_refusals_come_back_as_answers(remote: RemoteEngine) -> None:
    remote.submit(request("empty", 0))
    (answer,) = remote.receive(timeout=60)
    assert isinstance(answer, Refused)
    error = answer.as_error()
    assert isinstance(error, RequestError)
    assert error.field == "prompt"


def test_cancelling(remote: RemoteEngine) -> None:
    remote.submit(request("long", 5, max_tokens=500))
    while not remote.receive(timeout=60):
        pass
    remote.cancel("long")
    assert collect(remote, {"long"})["long"][-1].finish_reason == "abort"
    remote.cancel("long")  # it is gone: nothing happens
    assert remote.receive(timeout=0.2) == ()


def test_a_killed_engine_is_news_at_once(config: EngineConfig) -> None:
    with contextlib.closing(RemoteEngine(config)) as engine:
        engine.submit(request("doomed", 5, max_tokens=500))
        engine.receive(timeout=60)
        assert engine.process_id is not None
        os.kill(engine.process_id, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"engine process was killed \(signal 9\)"):
            list(iter(engine.receive, None))  # without the news it would wait forever
        with pytest.raises(EngineDeadError):
            engine.submit(request("late", 5))


def test_a_model_that_cannot_be_loaded_is_said_plainly(config: EngineConfig, tmp_path: "os.PathLike[str]") -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        RemoteEngine(EngineConfig(model=str(tmp_path)))


def test_a_process_can_be_there_before_its_engine(config: EngineConfig) -> None:
    with begun_early(config) as ranks:
        assert ranks is not None
        (early,) = ranks.process_ids
        with contextlib.closing(RemoteEngine(config, ranks=ranks)) as engine:
            assert engine.process_ids == (early,)
            engine.submit(request("first", 5))
            collect(engine, {"first"})
    assert not is_running(early)


def test_a_process_that_no_engine_needs_ends(config: EngineConfig) -> None:
    """Whether its front goes on without it, or is gone itself."""
    with begun_early(config) as ranks:
        assert ranks is not None
        (early,) = ranks.process_ids
        assert is_running(early)
    assert not is_running(early)
    with contextlib.closing(LocalRanks(1, "cpu")) as forgotten:
        forgotten._tasks[0].close()
        assert wait(forgotten.sentinels, timeout=120)
        assert forgotten.who_ended(is_told=False) == "The engine process ended with exit code 0."
    with begun_early(replace(config, distributed_executor_backend="ray")) as elsewhere:
        assert elsewhere is None


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_engine_that_still_loads_is_not_waited_for(
    config: EngineConfig, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a model loads: it would not read that it is to end."""

    def interrupted(self: RemoteEngine) -> None:
        processes.extend(self.process_ids)
        began.append(time.monotonic())
        raise KeyboardInterrupt

    processes: list[int] = []
    began: list[float] = []
    monkeypatch.setattr(RemoteEngine, "_wait_until_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RemoteEngine(replace(config, tensor_parallel_size=num_ranks))
    assert time.monotonic() - began[0] < 3
    assert len(processes) == num_ranks
    assert not any(map(is_running, processes))


def test_an_engine_outlives_a_signal_to_the_group_but_not_its_front(config: EngineConfig, tmp_path: Path) -> None:
    """A front that is killed cannot say goodbye; the engine must notice by itself."""
    script = tmp_path / "front.py"
    script.write_text(
        "import sys, time\n"
        "from facet.config import EngineConfig\n"
        "from facet.engine.client import RemoteEngine\n"
        "if __name__ == '__main__':\n"
        f"    engine = RemoteEngine(EngineConfig(model={config.model!r}, **{SETTINGS!r}))\n"
        "    print(engine.process_id, flush=True)\n"
        "    time.sleep(600)\n"
    )
    front = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert front.stdout is not None
        engine_id = int(front.stdout.readline())
        os.kill(engine_id, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(engine_id, 0)  # still there
    finally:
        front.kill()
        front.wait()
        front.stdout.close()  # type: ignore[union-attr]
    deadline = time.monotonic() + 120
    while is_running(engine_id):
        assert time.monotonic() < deadline, "the engine outlived its front"
        time.sleep(0.1)


FRONT = """
import sys, time
from facet.config import EngineConfig
from facet.engine.client import RemoteEngine
from facet.request import Request
from facet.sampling_params import SamplingParams

def loading(engine):
    print(engine.process_id, flush=True)
    time.sleep(600)

if __name__ == '__main__':
    if sys.argv[1] == 'loads':
        RemoteEngine._wait_until_ready = loading
    engine = RemoteEngine(EngineConfig(max_num_seqs=1, **CONFIG))
    for number in range(64):
        params = SamplingParams(max_tokens=400, ignore_eos=True)
        engine.submit(Request(request_id=str(number), prompt_token_ids=(3, 4), sampling=params))
    engine.receive(timeout=60)
    print(engine.process_id, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("when", ["loads", "answers"])
def test_an_engine_whose_front_is_killed_ends(config: EngineConfig, tmp_path: Path, when: str) -> None:
    """Before the model is there, and in the middle of more messages than wait for a front that is gone."""
    script = tmp_path / "front.py"
    script.write_text(FRONT.replace("CONFIG", repr({**SETTINGS, "model": config.model})))
    front = subprocess.Popen([sys.executable, str(script), when], stdout=subprocess.PIPE, text=True)
    assert front.stdout is not None
    with front.stdout:
        engine_id = int(front.stdout.readline())
        front.kill()
        front.wait()
    deadline = time.monotonic() + 60
    while is_running(engine_id):
        assert time.monotonic() < deadline, "the engine outlived its front"
        time.sleep(0.1)


def is_running(process_id: int) -> bool:
    """Whether there is such a process and it is not merely waiting to be collected."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
