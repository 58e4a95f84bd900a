"""The same question through both APIs, each in front of a scripted engine that keeps the requests it is sent."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import facet.offline.llm
from facet import LLM, RepetitionDetectionParams, RequestError, SamplingParams, StructuredOutputsParams
from facet.config import ServerConfig
from facet.engine.messages import EngineInfo
from facet.prompts import read_prompt_files
from facet.request import Request
from facet.sampling_params import DEFAULT_MAX_TOKENS
from facet.server.app import make_app
from facet.server.served_model import make_served_model
from tests.server.conftest import END, TEMPLATE
from tests.server.running import RunningServer, running
from tests.server.scripted_engine import ScriptedEngine
from tests.tokens.gemma_like import write_tokenizer_folder

CONTEXT = 256
# Written into the prompt, so that each shows in the request.
VARIABLES = "{{ greeting }}{{ reasoning_effort }}{% for document in documents or [] %}{{ document.text }}{% endfor %}"
GENERATION_CONFIG = {"eos_token_id": [1, END], "temperature": 0.9, "top_k": 64, "top_p": 0.95}
MODEL_DEFAULTS = {"temperature": 0.9, "top_k": 64, "top_p": 0.95}


@dataclass(frozen=True)
class Refusal:
    message: str
    field: str | None


@dataclass
class Doors:
    llm: LLM
    python_engine: ScriptedEngine
    server: RunningServer
    http_engine: ScriptedEngine
    defaults: dict[str, Any]  # of sampling, in this configuration

    def say(self, script: Callable[[Request], Sequence[int]]) -> None:
        """What the model answers from here on."""
        self.python_engine.script = self.http_engine.script = script

    def ask_python(self, ask: dict[str, Any], sampling: dict[str, Any] | None) -> Any:
        """Outputs, or the refusal."""
        self.python_engine.submitted.clear()
        try:
            params = None if sampling is None else self._params(sampling, is_chat="messages" in ask)
            if "messages" in ask:
                return self.llm.chat(ask["messages"], params, use_tqdm=False, **_without(ask, "messages"))
            others = _without(ask, "prompt")
            if "priority" in others:
                others["priority"] = [others["priority"]]
            return self.llm.generate(ask["prompt"], params, use_tqdm=False, **others)
        except RequestError as error:
            return Refusal(str(error), error.field)

    def ask_http(self, ask: dict[str, Any], sampling: dict[str, Any] | None) -> Any:
        """The response, or the refusal."""
        self.http_engine.submitted.clear()
        is_chat = "messages" in ask
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        response = self.server.post(path, {**ask, **_as_fields(sampling or {}, is_chat=is_chat)})
        body = response.json()
        if response.status_code == 400:
            return Refusal(body["error"]["message"], body["error"]["param"])
        assert response.status_code == 200, response.text
        return body

    def _params(self, sampling: dict[str, Any], *, is_chat: bool) -> SamplingParams:
        """A `SamplingParams` replaces the model's defaults; HTTP fields go over them. So they are spelled out here."""
        given = dict(sampling)
        if "structured_outputs" in given:
            given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
        if "repetition_detection" in given:
            given["repetition_detection"] = RepetitionDetectionParams(**given["repetition_detection"])
        return SamplingParams(**{"max_tokens": None if is_chat else DEFAULT_MAX_TOKENS, **self.defaults, **given})


@contextlib.contextmanager
def open_doors(folder: Path, **settings: Any) -> Iterator[Doors]:
    """Both APIs over one folder, with the same settings."""
    info = EngineInfo(480, (1,), CONTEXT, str(folder), ())
    engines = [ScriptedEngine(lambda request: [END], info, adapters={"poet": "/poet"}) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facet.offline.llm, "LocalEngine", lambda config, progress: engines[0])
        llm = LLM(str(folder), show_progress=False, **settings)
    config = ServerConfig(model=str(folder), disable_log_stats=True, **settings)
    with running(make_app(config, engines[1], make_served_model(config, read_prompt_files(config), info))) as server:
        defaults = {} if settings.get("generation_config") == "vllm" else dict(MODEL_DEFAULTS)
        defaults |= {"loop_guard": settings["loop_guard"]} if "loop_guard" in settings else {}
        if "default_thinking_token_budget" in settings:
            defaults["thinking_token_budget"] = settings["default_thinking_token_budget"]
        overrides = dict(settings.get("override_generation_config") or {})
        max_new_tokens = overrides.pop("max_new_tokens", None)
        defaults |= overrides if max_new_tokens is None else {**overrides, "max_tokens": max_new_tokens}
        yield Doors(llm, engines[0], server, engines[1], defaults)


def write_model_folder(folder: Path) -> Path:
    """All that either API reads of a checkpoint."""
    write_tokenizer_folder(folder, adds_bos=True)
    (folder / "chat_template.jinja").write_text(VARIABLES + TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION_CONFIG))
    return folder


def differences(one: Sequence[Request], other: Sequence[Request]) -> list[str]:
    """One line for each field in which they differ; ids and times of arrival aside."""
    if len(one) != len(other):
        return [f"{len(one)} requests and {len(other)}"]
    found = []
    for index, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        theirs = replace(theirs, request_id=mine.request_id, arrival_time=mine.arrival_time)
        for field in fields(Request):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            if a != b:
                found.append(f"request {index}, {field.name}: {a} and {b}")
    return found


def _as_fields(sampling: dict[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """Settings of `SamplingParams` as HTTP fields: the same names, but for chat's log-probabilities."""
    if is_chat and "logprobs" in sampling:
        return {**sampling, "logprobs": True, "top_logprobs": sampling["logprobs"]}
    return sampling


def _without(ask: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in ask.items() if key != name}
