"""A tiny model with a tokenizer, an engine for it in this process and one in a process of its own, each made once."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from facet import LLM, SamplingParams
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, skip_special_tokens=False)
TEMPLATE = "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"


@pytest.fixture(scope="session")
def folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with_tokenizer")
    shutil.copytree(tiny_model("gemma4_e2b_small").folder, folder, dirs_exist_ok=True)
    write_tokenizer_folder(folder, adds_bos=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def llm(folder: Path) -> Iterator[LLM]:
    with make_llm(folder) as llm:
        yield llm


@pytest.fixture(scope="session")
def remote(folder: Path) -> Iterator[LLM]:
    with make_llm(folder, separate_process=True) as llm:
        yield llm


def make_llm(folder: Path, **settings: Any) -> LLM:
    return LLM(
        str(folder), device="cpu", max_model_len=512, kv_cache_memory_bytes=8 << 20, show_progress=False, **settings
    )
