"""`facet serve --config`: settings from a YAML file, under those of the command line."""

from pathlib import Path
from typing import Any

import pytest

from facet.cli import main
from facet.config import ServerConfig

SETTINGS = """
model: google/gemma-4-E4B-it
max-model-len: 32k
served_model_name: [a, b]
enforce-eager: true
enable-prefix-caching: false
limit-mm-per-prompt: {image: 2}
api-key:
tensor-parallel-size: 1
block-size: 16
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    configs: list[ServerConfig] = []
    monkeypatch.setattr("facet.server.run.serve", lambda config, **_: configs.append(config) or 0)
    return configs


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ((), {}),
        (("another/model", "--max-model-len", "4096"), {"model": "another/model", "max_model_len": 4096}),
        (("--model", "another/model"), {"model": "another/model"}),
        (
            ("--served-model-name", "c", "--limit-mm-per-prompt.audio", "1", "--no-enforce-eager"),
            {"served_model_name": ("c",), "limit_mm_per_prompt": {"audio": 1}, "enforce_eager": False},
        ),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_command_line_wins(
    arguments: tuple[str, ...], changes: dict[str, Any], is_first: bool, tmp_path: Path, served: list[ServerConfig]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    flags = ("--config", str(path))
    assert main(["serve", *(flags + arguments if is_first else arguments + flags)]) == 0
    expected = {
        "model": "google/gemma-4-E4B-it",
        "max_model_len": 32_000,
        "served_model_name": ("a", "b"),
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "limit_mm_per_prompt": {"image": 2},
        "api_key": (),
        **changes,
    }
    (config,) = served
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("max-model-len: [4096]\nenforce-eager: [true]", {"max_model_len": 4096, "enforce_eager": True}),
        ("model: m\nspeculative-config.x: [a, b]", {"model": "m", "speculative_config": {"x": ["a", "b"]}}),
        ("model: m\nlora-modules: [a=/x, b=/y]", {"model": "m", "lora_modules": ("a=/x", "b=/y")}),
        (
            "model: m\nlora-modules:\n  - name: a\n    path: /x\n  - b=/y",
            {"model": "m", "lora_modules": ('{"name": "a", "path": "/x"}', "b=/y")},
        ),
        ("model: m\nlora-modules: a=/x", {"model": "m", "lora_modules": ("a=/x",)}),
    ],
)
def test_lists_that_are_one_value(
    text: str, changes: dict[str, Any], tmp_path: Path, served: list[ServerConfig]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    assert main(["serve", "--config", str(path)]) == 0
    assert {name: getattr(served[0], name) for name in changes} == changes


@pytest.mark.parametrize("flags", [("--config=",), ("--config", "")])
def test_no_file(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["serve", *flags])
    assert capsys.readouterr().err.startswith("error: --config names no file. Name one, or leave it out.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-modellen: 4", "facet serve has no --max-modellen. Did you mean --max-model-len?"),
        ("port: many", "--port"),
        ("- a list", "must map names of flags to values"),
        ("a: [", "is not YAML"),
        ("model: !!python/object/apply:os.system [true]", "is not YAML"),
        ("config: other.yaml", "cannot name another"),
        ("max-model-len: [1, 2]", "max-model-len has a list of 2, but --max-model-len takes one value."),
        ("max_model_len: []", "max_model_len has a list of 0, but --max_model_len takes one value."),
        ("enforce-eager: [true, false]", "enforce-eager has a list of 2, but"),
        ("model: [a, b]", "model has a list of 2, but --model takes one value."),
        ("max-modellen: [1, 2]", "facet serve has no --max-modellen."),
        ("api-key: [good, null]", "api-key has a value that YAML does not read as text. Write it in quotes."),
        ("api_key: 0123", "api_key has a value that YAML does not read as text."),
        ("served-model-name: [a, null]", "served-model-name has an empty item"),
        ("allowed-origins: [yes]", "allowed-origins has an empty item, or one that YAML reads as true or false."),
        (None, "cannot be read"),
    ],
)
def test_what_is_refused(text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "settings.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--config", str(path)])
    message = capsys.readouterr().err
    assert words in message
    assert f"--config {path}: " in message
    assert message.count("\n") == 1
