"""`facet complete` and `facet chat` with an adapter, which then answers."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from facet.cli import main
from tests.quick_starts import quick_starts
from tests.tiny_adapters import adaptable_modules, write_adapter
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder


def test_the_adapter_answers(
    tiny_model: Callable[[str], TinyModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = tiny_model("gemma4_e2b_served")
    shutil.copytree(tiny.folder, tmp_path / "model")
    write_tokenizer_folder(tmp_path / "model", adds_bos=True)
    write_adapter(tmp_path / "poet", adaptable_modules(tiny, "q_proj", "v_proj"), size=2.0)

    def said(*flags: str) -> str:
        fixed = ("--raw", "--model", str(tmp_path / "model"), "--device", "cpu", "--temperature", "0")
        with quick_starts():
            assert main(["complete", *fixed, "--max-tokens", "8", *flags, "one two"]) == 0
        return capsys.readouterr().out

    base = said()
    poet = said("--lora-modules", f"poet={tmp_path / 'poet'}")
    assert poet != base
    assert poet.strip()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--lora-modules", "a=/x", "--lora-modules", "b=/y"),
            "--lora-modules names 2 adapters, but one answers here.",
        ),
        (("--lora-modules", "a"), "--lora-modules a names no path."),
        (("--lora-modules", "m=/x"), "'m' is a name of the model."),
    ],
)
@pytest.mark.parametrize("command", [("chat", "m"), ("complete", "--model", "m", "prompt")])
def test_what_is_refused_before_anything_is_loaded(
    command: tuple[str, ...], flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], *flags, *command[1:]]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
