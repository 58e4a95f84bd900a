"""The doctor finds a tokenizer that reads control tokens in a client's text, and says what it could not look at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facet.doctor.findings import Finding
from facet.doctor.injection_check import check_injection
from facet.tokens import Tokenizer
from facet.tokens.prompt_text import PromptText
from tests.doctor.conftest import TEMPLATE
from tests.tokens.gemma_like import CONTROL_TOKENS, write_tokenizer_folder

NO_TOOLS = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}{% endif %}"
    + ("<|turn>{{ m.content }}<turn|>{% endfor %}")
)


def finding(folder: Path) -> Finding:
    patient: Any = SimpleNamespace(folder=folder)
    (found,) = check_injection(patient)
    return found


@pytest.mark.parametrize("template", [TEMPLATE, NO_TOOLS])
def test_a_sound_one_passes_and_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    write_tokenizer_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    found = finding(tmp_path)
    assert (found.status, found.note.split()[0]) == ("pass", str(len(CONTROL_TOKENS)))
    encode = Tokenizer.encode_prompt
    monkeypatch.setattr(Tokenizer, "encode_prompt", lambda self, prompt: encode(self, PromptText(prompt.text)))
    found = finding(tmp_path)
    assert found.status == "fail"
    assert "<pad>" in found.note


def test_what_cannot_be_looked_at_is_skipped(tmp_path: Path) -> None:
    assert "no tokenizer.json" in finding(tmp_path).note
    write_tokenizer_folder(tmp_path)
    assert "no chat template" in finding(tmp_path).note
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('not today') }}")
    assert "not today" in finding(tmp_path).note
