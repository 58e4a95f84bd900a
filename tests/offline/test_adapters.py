"""`lora_request`: adapters are loaded once, by the first call that names them, and answer what names them."""

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import facet.offline.llm
from facet import LLM, LoRARequest, RequestError
from facet.adapter import AdapterInfo, AdapterSource
from facet.engine.messages import AdapterState, EngineInfo, FromEngine
from facet.offline.loaded_adapters import LoadedAdapters
from facet.prompts import AskedModel
from tests.offline.conftest import GREEDY
from tests.server.scripted_engine import ScriptedEngine

POET, CLERK = LoRARequest("poet", 1, "/adapters/poet"), LoRARequest("clerk", 2, "/adapters/clerk")
TALK: Any = [{"role": "user", "content": "one"}]


@pytest.fixture
def scripted_llm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LLM, ScriptedEngine]]:
    """An `LLM` whose engine keeps what it is told, and has loaded one adapter at its start."""
    info = EngineInfo(480, (1,), 256, str(folder), ())
    engine = ScriptedEngine(lambda request: [300, 1], info, adapters={"first": "/adapters/first"})
    monkeypatch.setattr(facet.offline.llm, "LocalEngine", lambda config, progress: engine)
    with LLM(str(folder), show_progress=False) as llm:
        yield llm, engine


def test_each_prompt_gets_its_adapter(scripted_llm: tuple[LLM, ScriptedEngine]) -> None:
    llm, engine = scripted_llm

    def asked(call: Callable[[], Sequence[Any]]) -> list[str | None]:
        engine.submitted.clear()
        outputs = call()
        assert all(output.finished for output in outputs)
        names = [None if output.lora_request is None else output.lora_request.lora_name for output in outputs]
        assert names == [request.adapter for request in engine.submitted]
        return names

    prompts = ["one", "two", "three"]
    assert asked(lambda: llm.generate(prompts, GREEDY)) == [None] * 3
    assert engine.adapters.keys() == {"first"}
    assert asked(lambda: llm.generate(prompts, GREEDY, lora_request=POET)) == ["poet"] * 3
    given = [CLERK, None, POET]
    assert asked(lambda: llm.generate(prompts, GREEDY, lora_request=given)) == ["clerk", None, "poet"]
    assert asked(lambda: llm.generate("one", GREEDY)) == [None], "an adapter is one call's"
    assert asked(lambda: llm.chat(TALK, GREEDY, lora_request=CLERK)) == ["clerk"]
    assert asked(lambda: llm.chat([TALK, TALK], GREEDY, lora_request=[None, POET])) == [None, "poet"]
    assert engine.adapters == {"first": "/adapters/first", "poet": "/adapters/poet", "clerk": "/adapters/clerk"}


def test_the_output_holds_what_was_given(scripted_llm: tuple[LLM, ScriptedEngine]) -> None:
    llm, _ = scripted_llm
    (output,) = llm.generate("one", GREEDY, lora_request=POET)
    assert output.lora_request is POET


def test_objects_that_look_like_vllms(scripted_llm: tuple[LLM, ScriptedEngine]) -> None:
    llm, engine = scripted_llm
    vllms: Any = SimpleNamespace(lora_name="a", lora_int_id=7, lora_path="/a", load_inplace=False)
    older: Any = SimpleNamespace(lora_name="b", lora_int_id=8, lora_local_path=Path("/b"))
    (output,) = llm.generate("one", GREEDY, lora_request=vllms)
    assert output.lora_request is vllms
    llm.generate("one", GREEDY, lora_request=[older])
    llm.generate("one", GREEDY, lora_request=LoRARequest(lora_name="c", lora_int_id=9, lora_local_path="/c"))
    assert engine.adapters == {"first": "/adapters/first", "a": "/a", "b": "/b", "c": "/c"}


def test_a_name_stands_for_one_adapter(scripted_llm: tuple[LLM, ScriptedEngine], tmp_path: Path) -> None:
    llm, engine = scripted_llm
    llm.generate("one", GREEDY, lora_request=POET)
    for same in ("/adapters/poet", "/adapters/../adapters/poet/", ""):
        llm.generate("one", GREEDY, lora_request=LoRARequest("poet", 5, same))
    llm.generate("one", GREEDY, lora_request=LoRARequest("first"))
    engine.submitted.clear()
    for other, path in (("poet", "/adapters/clerk"), ("first", "/adapters/poet")):
        with pytest.raises(RequestError, match=f"as '{other}', but that is the name of the adapter in /adapters/"):
            llm.generate("one", GREEDY, lora_request=LoRARequest(other, 1, path))
    with pytest.raises(RequestError, match="names 'nobody', which is not loaded, without a path"):
        llm.generate("one", GREEDY, lora_request=LoRARequest("nobody"))
    with pytest.raises(RequestError, match="as 'twins', but that is the name"):
        llm.generate(["a", "b"], GREEDY, lora_request=[LoRARequest("twins", 1, "/a"), LoRARequest("twins", 2, "/b")])
    assert not engine.submitted


def test_what_the_engine_refuses_reaches_the_caller(scripted_llm: tuple[LLM, ScriptedEngine]) -> None:
    llm, engine = scripted_llm
    engine.cannot_load = "The adapter poet finds no room: 1 are loaded, and max_loras is 1."
    with pytest.raises(RequestError, match="The adapter poet finds no room") as caught:
        llm.generate("one", GREEDY, lora_request=POET)
    assert caught.value.field == "lora_request"
    assert not engine.submitted
    assert llm.generate("one", GREEDY)[0].finished
    engine.cannot_load = None
    assert llm.generate("one", GREEDY, lora_request=POET)[0].finished, "it is tried again"


def test_a_question_that_is_refused_loads_nothing(scripted_llm: tuple[LLM, ScriptedEngine]) -> None:
    llm, engine = scripted_llm
    with pytest.raises(RequestError):
        llm.chat([{"role": "nobody", "content": "one"}], GREEDY, lora_request=POET)
    assert engine.adapters.keys() == {"first"}


@dataclass
class InterruptedEngine:
    """Answers loads in their order. While it is listened to, Ctrl-C is pressed as often as told."""

    num_interrupts: int = 0
    loaded: dict[str, str] = field(default_factory=dict)
    said: deque[AdapterState] = field(default_factory=deque)

    def load_adapter(self, source: AdapterSource) -> None:
        error = None
        if source.name in self.loaded:
            error = f"There is an adapter {source.name}."
        elif "bad" in source.path:
            error = f"{source.name} is bad."
        else:
            self.loaded[source.name] = source.path
        infos = tuple(AdapterInfo(name, path, "") for name, path in self.loaded.items())
        self.said.append(AdapterState(infos, error))

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        if self.num_interrupts:
            self.num_interrupts -= 1
            raise KeyboardInterrupt
        assert self.said, "it would be waited for in vain"
        return [self.said.popleft()]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(("/x", "/y", "/bad")), st.booleans()), max_size=12))
def test_a_load_that_was_interrupted_confuses_no_later_one(calls: list[tuple[str, str, bool]]) -> None:
    engine = InterruptedEngine()
    adapters, client = LoadedAdapters(()), engine
    for name, path, is_interrupted in calls:
        engine.num_interrupts = int(is_interrupted)
        before = dict(engine.loaded)
        try:
            adapters.require(client, [AdapterSource(name, path)])  # type: ignore[arg-type]
            outcome = "done"
        except KeyboardInterrupt:
            continue
        except RequestError as error:
            outcome = str(error)
        engine.num_interrupts = 0
        if name in before:
            expected = "done" if before[name] == path else "as " + repr(name)
        else:
            expected = f"{name} is bad." if path == "/bad" else "done"
        assert expected in outcome
        assert not engine.said


def test_the_name_costs_no_torch() -> None:
    """`import facet` stays quick; the class comes with the rest of the Python API."""
    program = "import sys, facet; assert 'torch' not in sys.modules; assert 'LoRARequest' in facet.__all__"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_model_with_an_adapter_is_the_same_otherwise() -> None:
    asked = AskedModel(max_model_len=5, eos_token_ids=(1,), tokenizer=None, template=None)
    assert asked.with_adapter(None) == asked
    assert asked.with_adapter("a").with_adapter(None) == asked
