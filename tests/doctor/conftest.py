"""A tiny model that can chat, made once, and the examination of a model."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tokens.gemma_like import write_tokenizer_folder

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}<|tool>{{ tool.function.name }}<tool|>{% endfor %}"
    "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"
)


@pytest.fixture(scope="session")
def chatty_folder(tiny_model: "Callable[[str], TinyModel]", tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chatty")
    shutil.copytree(tiny_model("gemma4_e2b_small").folder, folder, dirs_exist_ok=True)
    write_tokenizer_folder(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder
