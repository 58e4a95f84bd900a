"""A model that slept answers as before, and its memory was away meanwhile."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from facet.config import EngineConfig
from facet.engine.engine import Engine, make_engine
from facet.engine.loading import make_runner
from facet.engine.messages import FromEngine, Sleep, SleepState, ToEngine, WakeUp
from facet.engine.service import EngineService, make_info
from facet.errors import ConfigError, RequestError, UserError
from facet.layers.removable_memory import HostMemory
from facet.progress import Silent
from facet.request import Request
from facet.runner import sleeping
from facet.sampling_params import SamplingParams
from tests.tiny_models import TinyModel


@pytest.fixture
def config(tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    monkeypatch.setattr(sleeping, "LEAST_BYTES", 1 << 10)  # the model is tiny
    tiny: TinyModel = tiny_model("gemma4_e2b_small")
    folder = shutil.copytree(tiny.folder, tmp_path / "model")
    return EngineConfig(
        model=str(folder), device="cpu", max_model_len=256, enable_sleep_mode=True, kv_cache_memory_bytes=8 << 20
    )


def answer(engine: Engine, name: str) -> list[int]:
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    engine.submit(Request(request_id=name, prompt_token_ids=tuple(range(3, 60)), sampling=sampling))
    token_ids: list[int] = []
    while engine.has_work:
        for event in engine.step():
            token_ids += event.token_ids
    return token_ids


def test_answers_are_the_same_after_a_sleep(config: EngineConfig) -> None:
    engine, _ = make_engine(config)
    expected = answer(engine, "before")
    weight = next(parameter for parameter in engine.runner.model.parameters() if parameter.nbytes >= 1 << 16)
    values, address = weight.clone(), weight.data_ptr()
    arena = engine.runner.arena.bytes  # type: ignore[union-attr]
    for level in (1, 2, 1):
        assert arena.any()
        engine.sleep(level)
        engine.sleep(level)  # already
        assert engine.is_asleep
        assert not arena.any(), "its pages are gone"
        assert bool(weight.any()) == (level == 1), "on a CPU, weights of level 1 stay"
        with pytest.raises(RequestError, match="asleep"):
            answer(engine, "meanwhile")
        engine.wake_up()
        engine.wake_up()
        assert not engine.is_asleep
        assert weight.data_ptr() == address
        assert torch.equal(weight, values)
        assert answer(engine, f"after {level}") == expected
    assert engine.stats().scheduler.cache.num_prompt_tokens_hit == 0, "prefixes were forgotten"


def test_a_sleeping_model_can_sleep_more_deeply(config: EngineConfig) -> None:
    ready = make_runner(config, Silent())
    sleeper = ready.sleeper
    assert sleeper is not None
    engine = Engine(ready.runner, ready.settings, ready.folder, sleeper=sleeper)
    expected = answer(engine, "before")
    weight = next(parameter for parameter in engine.runner.model.parameters() if parameter.nbytes >= 1 << 16)
    values = weight.clone()
    engine.sleep(1)
    assert weight.any()
    sleeper._kept = [HostMemory(64)]  # as they wait on a machine with a GPU
    engine.sleep(2)
    assert (sleeper.level, sleeper._kept, bool(weight.any())) == (2, [], False)
    engine.sleep(1)
    assert sleeper.level == 2, "what is dropped cannot wait"
    engine.wake_up()
    assert torch.equal(weight, values)
    assert answer(engine, "after") == expected


def test_messages_of_another_process(config: EngineConfig) -> None:
    engine, folder = make_engine(config)
    service = EngineService(engine, make_info(engine, folder))

    def said(message: ToEngine) -> list[FromEngine]:
        sent: list[FromEngine] = []
        service.handle(msgspec.msgpack.Decoder(ToEngine).decode(msgspec.msgpack.encode(message)), sent.append)
        return msgspec.msgpack.Decoder(list[FromEngine]).decode(msgspec.msgpack.encode(sent))

    assert said(Sleep(1)) == [SleepState(is_asleep=True)]
    (state,) = said(Sleep(7))
    assert isinstance(state, SleepState)
    assert state.is_asleep
    assert "no level 7" in str(state.error)
    assert said(WakeUp()) == [SleepState(is_asleep=False)]


def test_a_model_whose_files_are_gone_sleeps_on(config: EngineConfig, tmp_path: Path) -> None:
    folder = Path(config.model)
    engine, _ = make_engine(config)
    expected = answer(engine, "before")
    engine.sleep(2)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError):
        engine.wake_up()
    assert engine.is_asleep
    (tmp_path / "elsewhere").rename(folder)
    engine.wake_up()
    assert answer(engine, "after") == expected


def test_what_cannot_sleep_says_why(config: EngineConfig) -> None:
    engine, _ = make_engine(config)
    engine.submit(Request(request_id="1", prompt_token_ids=(3, 4), sampling=SamplingParams(max_tokens=2)))
    with pytest.raises(ConfigError, match="Requests are running"):
        engine.sleep(1)
    engine.cancel("1")
    with pytest.raises(ConfigError, match="no level 3"):
        engine.sleep(3)
    engine.sleep(1)
    awake = Engine(engine.runner, engine.settings)
    with pytest.raises(ConfigError, match="--enable-sleep-mode"):
        awake.sleep(1)
