"""Adapters the whole way: the real engine in its process, behind HTTP and behind `LLM`."""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from facet import LLM, LoRARequest, RequestError, SamplingParams
from facet.config import ServerConfig
from tests.server.running import RunningServer, running_with_engine
from tests.tiny_adapters import adaptable_modules, write_adapter
from tests.tiny_models import TinyModel

SETTINGS: dict[str, Any] = dict(device="cpu", kv_cache_memory_bytes=8 << 20, max_num_batched_tokens=64)
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, skip_special_tokens=False)
COMPLETIONS, LOAD, UNLOAD = "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROMPT = "one two three"


@pytest.fixture(scope="module")
def root(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two adapters, and some that cannot be loaded."""
    folder, tiny = tmp_path_factory.mktemp("adapters"), tiny_model("gemma4_e2b_served")
    for seed, name in enumerate(("poet", "clerk")):
        write_adapter(folder / name, adaptable_modules(tiny, "q_proj", "v_proj"), seed=seed, size=2.0)
    write_adapter(folder / "large", adaptable_modules(tiny, "q_proj"), rank=24)
    shutil.copytree(folder / "poet", folder / "torn")
    (folder / "torn" / "adapter_model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def server(model_folder: Path, root: Path) -> Iterator[RunningServer]:
    config = ServerConfig(
        model=str(model_folder),
        served_model_name=("tiny",),
        disable_log_stats=True,
        lora_modules=(f"first={root / 'poet'}",),
        max_loras=2,
        allowed_lora_path=str(root),
        **SETTINGS,
    )
    with running_with_engine(config) as server:
        yield server


def ids(server: RunningServer, model: str) -> list[int]:
    body = {"prompt": PROMPT, "model": model, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    answer = server.post(COMPLETIONS, {**body, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    token_ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return token_ids


def test_answers_are_those_of_their_adapters(server: RunningServer, root: Path) -> None:
    base, poet = ids(server, "tiny"), ids(server, "first")
    assert base != poet
    assert server.post(LOAD, {"lora_name": "second", "lora_path": "clerk"}).status_code == 200
    clerk = ids(server, "second")
    assert clerk not in (base, poet)
    with ThreadPoolExecutor(9) as threads:
        names = ["tiny", "first", "second"] * 6
        assert list(threads.map(lambda name: ids(server, name), names)) == [base, poet, clerk] * 6

    full = server.post(LOAD, {"lora_name": "third", "lora_path": "poet"})
    assert full.status_code == 400
    assert "max-loras" in full.text
    in_place = {"lora_name": "second", "lora_path": str(root / "poet"), "load_inplace": True}
    assert server.post(LOAD, in_place).status_code == 200
    assert ids(server, "second") == poet
    assert server.post(UNLOAD, {"lora_name": "second"}).status_code == 200
    assert server.post(COMPLETIONS, {"prompt": PROMPT, "model": "second"}).status_code == 404
    assert server.post(LOAD, {"lora_name": "third", "lora_path": "clerk"}).status_code == 200
    assert (ids(server, "third"), ids(server, "first"), ids(server, "tiny")) == (clerk, poet, base)
    assert server.post(UNLOAD, {"lora_name": "third"}).status_code == 200


@pytest.mark.parametrize("path", ["large", "torn", "empty"])
def test_what_cannot_be_loaded_is_refused_and_leaves_nothing(server: RunningServer, root: Path, path: str) -> None:
    before = ids(server, "tiny")
    refused = server.post(LOAD, {"lora_name": "bad", "lora_path": path})
    assert refused.status_code == 400
    assert str(root) not in refused.text, "where it lies is not for everyone with a key"
    assert server.post(COMPLETIONS, {"prompt": PROMPT, "model": "bad"}).status_code == 404
    assert ids(server, "tiny") == before


@pytest.mark.parametrize("separate_process", [False, True])
def test_from_python(server: RunningServer, model_folder: Path, root: Path, separate_process: bool) -> None:
    expected = [ids(server, "first"), ids(server, "tiny")]
    poet, clerk = (LoRARequest(name, number, str(root / name)) for number, name in ((1, "poet"), (2, "clerk")))
    with LLM(
        str(model_folder),
        enable_lora=True,
        max_loras=1,
        show_progress=False,
        separate_process=separate_process,
        **SETTINGS,
    ) as llm:
        for given in ([poet, None], [LoRARequest("poet"), None]):
            outputs = llm.generate([PROMPT] * 2, GREEDY, lora_request=given)
            assert [output.outputs[0].token_ids for output in outputs] == expected
            assert [output.lora_request for output in outputs] == given
        with pytest.raises(RequestError, match="max-loras"):
            llm.generate([PROMPT] * 2, GREEDY, lora_request=[poet, clerk])
        (other,) = llm.generate(PROMPT, GREEDY, lora_request=clerk)  # takes the place of the one not named
        assert other.outputs[0].token_ids not in expected
        assert llm.generate(PROMPT, GREEDY, lora_request=poet)[0].outputs[0].token_ids == expected[0]
        chats = llm.chat([{"role": "user", "content": "one"}], GREEDY, lora_request=poet)
        assert chats[0].lora_request is poet


def test_python_without_room(model_folder: Path, root: Path) -> None:
    poet = LoRARequest("poet", 1, str(root / "poet"))
    with LLM(str(model_folder), lora_modules=[f"poet={root / 'poet'}"], show_progress=False, **SETTINGS) as llm:
        (output,) = llm.generate(PROMPT, GREEDY, lora_request=poet)
        assert output.outputs[0].token_ids != llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    with (
        LLM(str(model_folder), show_progress=False, **SETTINGS) as llm,
        pytest.raises(RequestError, match="enable-lora"),
    ):
        llm.generate(PROMPT, GREEDY, lora_request=poet)
