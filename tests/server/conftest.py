"""Servers for the tests: one with the real engine and a tiny model, and ones with a scripted engine."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from facet.chat import ChatTemplate
from facet.config import ServerConfig
from facet.engine.messages import CacheInfo, EngineInfo
from facet.prompts import AskedModel
from facet.request import Request
from facet.server.app import make_app
from facet.server.served_model import ServedModel
from facet.tokens import Tokenizer
from tests.server.page_in_browser import REPLIES, Page, start
from tests.server.running import RunningServer, running, running_with_engine
from tests.server.scripted_engine import Script, ScriptedEngine
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import build_gemma_like, write_tokenizer_folder
from tools.webdriver import Browser, missing_programs, running_browser

# In the manner of Gemma 4's own: declarations in the system turn, tool calls and results as text.
TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools or enable_thinking %}<|turn>system\n{% if enable_thinking %}<|think|>{% endif %}"
    "{% for tool in tools or [] %}<|tool>{{ tool | tojson }}<tool|>{% endfor %}<turn|>\n{% endif %}"
    "{% for m in messages %}<|turn>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}"
    "{% for call in m.tool_calls or [] %}<|tool_call>{{ call.function.name }}<tool_call|>{% endfor %}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
MODEL_NAME = "tiny"
END = 16  # <turn|>


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_gemma_like())


@pytest.fixture(scope="session")
def model_folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(tiny_model("gemma4_e2b_served").folder, folder, dirs_exist_ok=True)
    write_tokenizer_folder(folder, adds_bos=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, END], "top_k": 64}))
    return folder


@pytest.fixture(scope="session")
def real_server(model_folder: Path) -> Iterator[RunningServer]:
    """The real engine in its process, with a tiny random model. Only for tests that do not mind each other's traces."""
    config = ServerConfig(
        model=str(model_folder),
        served_model_name=("tiny",),
        disable_log_stats=True,
        device="cpu",
        kv_cache_memory_bytes=8 << 20,
        max_num_batched_tokens=512,
    )
    with running_with_engine(config) as server:
        yield server


Scripted = Callable[..., contextlib.AbstractContextManager[tuple[RunningServer, ScriptedEngine]]]


@pytest.fixture(scope="session")
def scripted(tokenizer: Tokenizer) -> Scripted:
    """A server whose model says what `script` gives: text to be encoded, or token ids."""

    @contextlib.contextmanager
    def make(
        script: Script | str | list[int],
        *,
        model: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
        assert tokenizer.token_to_id("<turn|>") == END
        if isinstance(script, str):
            script = [*tokenizer.encode(script, add_special_tokens=False), END]
        token_ids = script
        config = ServerConfig(model=MODEL_NAME, disable_log_stats=True, **settings)
        cache = CacheInfo(num_blocks=10, block_bytes=1024, tokens_per_block=(("sliding", 16), ("global", 40)))
        info = EngineInfo(480, (1, END), 4096, "", (), cache=cache)
        speaker = ScriptedEngine(script if callable(script) else lambda request: token_ids, info, **(engine or {}))
        asked = AskedModel(
            **{
                "max_model_len": 4096,
                "eos_token_ids": (1, END),
                "tokenizer": tokenizer,
                "template": ChatTemplate(
                    TEMPLATE, special_tokens=tokenizer.special_tokens, control_texts=tokenizer.control_tokens.id_of
                ),
                **(model or {}),
            }
        )
        names = config.served_model_name or (MODEL_NAME,)
        served = ServedModel(
            names=names,
            root=MODEL_NAME,
            vocab_size=480,
            asked=asked,
            names_tokens_by_id=config.return_tokens_as_token_ids,
        )
        with running(make_app(config, speaker, served), config) as server:
            yield server, speaker
        assert speaker.is_closed

    return make


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if missing := missing_programs():
        pytest.skip(f"needs {' and '.join(missing)}: make browser installs them")
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def page_server(scripted: Scripted, tokenizer: Tokenizer) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    """Says what `REPLIES` has for the last question."""

    def reply(request: Request) -> list[int]:
        prompt = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        if "long" in prompt:
            return [281] * 4000
        said = "result" if "<|turn>tool" in prompt else prompt.rpartition("<|turn>user")[2]
        return [
            *tokenizer.encode(next(REPLIES[word] for word in REPLIES if word in said), add_special_tokens=False),
            END,
        ]

    with scripted(reply, engine={"seconds_per_turn": 0.002}) as served:
        yield served


@pytest.fixture
def page(browser: Browser, page_server: tuple[RunningServer, ScriptedEngine], tokenizer: Tokenizer) -> Iterator[Page]:
    """Empty, in a browser that remembers nothing."""
    server, engine = page_server
    start(browser, server)
    yield Page(browser, server, engine, tokenizer)
    engine.fail_after = None
    assert browser.console() == []
    browser.open("about:blank")  # what moves in a page is drawn as long as it is open
