"""What the server makes of a checkpoint's files and of the flags about them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from facet.config import EngineConfig, ServerConfig, engine_config
from facet.engine.messages import EngineInfo
from facet.errors import CheckpointError, ConfigError
from facet.prompts import read_prompt_files
from facet.server.served_model import ServedModel, make_served_model
from tests.published_configs import published
from tests.tokens.gemma_like import write_tokenizer_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("its own {{ messages[0].content }}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 16], "temperature": 0.7, "top_k": 64}')
    return tmp_path


def served(folder: Path, **settings: Any) -> ServedModel:
    info = EngineInfo(480, (1,), 512, str(folder), ())
    config = ServerConfig(model=str(folder), **settings)
    return make_served_model(config, read_prompt_files(config), info)


def rendered(model: ServedModel) -> str:
    return model.asked.require_template().render([{"role": "user", "content": "x"}]).text


def test_as_the_checkpoint_has_it(folder: Path) -> None:
    model = served(folder)
    assert (model.names, model.name, model.root) == ((str(folder),), str(folder), str(folder))
    assert model.asked.eos_token_ids == (1, 16, 9)  # and what opens the response of a tool
    assert model.asked.sampling_defaults == {"temperature": 0.7, "top_k": 64}
    assert rendered(model) == "its own x"
    assert served(folder, served_model_name=("a", "b")).names == ("a", "b")


def test_where_defaults_come_from(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert served(folder, generation_config="vllm").asked.sampling_defaults == {}
    assert served(folder, generation_config="vllm").asked.eos_token_ids == (1, 16, 9)
    other = tmp_path_factory.mktemp("other")
    (other / "generation_config.json").write_text('{"top_p": 0.5}')
    assert served(folder, generation_config=str(other)).asked.sampling_defaults == {"top_p": 0.5}
    model = served(folder, override_generation_config={"temperature": 0.1, "max_tokens": 9, "pad_token_id": 0})
    assert model.asked.sampling_defaults == {"temperature": 0.1, "top_k": 64}
    assert (model.asked.max_tokens_default, model.asked.max_tokens_limit) == (9, None)


def test_greedy_in_the_words_of_hugging_face(folder: Path) -> None:
    assert served(folder, override_generation_config={"do_sample": False}).asked.sampling_defaults["temperature"] == 0
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    assert served(folder).asked.sampling_defaults == {"temperature": 0}
    assert served(folder, override_generation_config={"do_sample": True}).asked.sampling_defaults == {}


@pytest.mark.parametrize(
    ("overrides", "given", "expected"),
    [
        ({"max_new_tokens": 9}, {}, (9, 0)),
        ({"max_new_tokens": 9}, {"max_tokens": 5, "min_tokens": 5}, (5, 5)),
        ({"max_new_tokens": 9}, {"max_tokens": 500, "min_tokens": 20}, (9, 9)),
        ({"max_new_tokens": 9}, {"max_tokens": None}, (9, 0)),
        ({"max_new_tokens": 9, "max_tokens": 4}, {}, (4, 0)),
        ({"max_tokens": 4}, {"max_tokens": 500}, (500, 0)),
        ({"max_new_tokens": None}, {}, (16, 0)),
    ],
    ids=str,
)
def test_answers_have_a_limit(
    folder: Path, overrides: dict[str, Any], given: dict[str, Any], expected: tuple[int, int]
) -> None:
    params = served(folder, override_generation_config=overrides).asked.sampling(given, max_tokens=16)
    assert (params.max_tokens, params.min_tokens) == expected


def test_a_limit_of_a_folder(folder: Path) -> None:
    """Of one that was named; the model's own recommends."""
    (folder / "generation_config.json").write_text('{"max_new_tokens": 7}')
    assert served(folder).asked.max_tokens_limit is None
    assert served(folder, generation_config=str(folder)).asked.max_tokens_limit == 7
    overrides = {"max_new_tokens": 8}
    model = served(folder, generation_config=str(folder), override_generation_config=overrides)
    assert model.asked.max_tokens_limit == 8


def test_templates_from_a_flag(folder: Path) -> None:
    path = folder / "another.jinja"
    path.write_text("from a file")
    assert rendered(served(folder, chat_template=str(path))) == "from a file"
    assert rendered(served(folder, chat_template="{{ 1 + 1 }}")) == "2"


def test_a_tokenizer_from_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    write_tokenizer_folder(other)
    (folder / "tokenizer.json").unlink()
    assert rendered(served(folder, tokenizer=str(other))) == "its own x"
    (other / "chat_template.jinja").write_text("of the tokenizer")
    assert rendered(served(folder, tokenizer=str(other))) == "of the tokenizer"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"structured_outputs_any_whitespace": True}, True),
        ({"structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": False}}, True),
        ({"structured_outputs_config": {"backend": "xgrammar", "disable_fallback": False}}, False),
    ],
)
def test_blanks_in_structured_output(folder: Path, settings: dict[str, Any], expected: bool) -> None:
    assert served(folder, **settings).asked.any_whitespace == expected


def test_no_tokenizer(folder: Path) -> None:
    model = served(folder, skip_tokenizer_init=True)
    assert model.asked.tokenizer is model.asked.template is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"generation_config": "nowhere"}, "--generation-config nowhere"),
        ({"override_generation_config": {"temprature": 1}}, "'temprature'"),
        ({"override_generation_config": {"temperature": -1}}, "temperature is -1"),
        ({"override_generation_config": {"max_new_tokens": 0}}, "max_new_tokens is 0"),
        ({"override_generation_config": {"do_sample": 1}}, "do_sample 1, but it must be true or false"),
        ({"override_generation_config": {"eos_token_id": 1}}, "names 'eos_token_id'"),
        ({"chat_template": "nowhere.jinja"}, "--chat-template nowhere.jinja"),
        ({"structured_outputs_config": {"backend": "pen"}}, "backend 'pen' is unknown"),
    ],
    ids=str,
)
def test_flags_that_cannot_be(folder: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        served(folder, **settings)


def test_pictures_that_cannot_be_prepared_need_not_be(folder: Path) -> None:
    """The server says how text can be had without them."""
    (folder / "config.json").write_text(json.dumps(published("Gemma 4 E4B")))
    (folder / "processor_config.json").write_text('{"image_processor": {"resample": 5}}')
    info = EngineInfo(480, (1,), 512, str(folder), (), media_kinds=("image",))
    config = ServerConfig(model=str(folder))
    with pytest.raises(ConfigError, match=r"resample is 5.*--language-model-only"):
        make_served_model(config, read_prompt_files(config), info)


def test_a_template_with_a_mistake(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="--chat-template is not a valid template"):
        served(folder, chat_template="{% if %}")


def test_the_engine_is_told_nothing_of_the_server() -> None:
    given = ServerConfig(model="m", api_key=("secret",), hf_token="secret", max_num_seqs=7)
    config = engine_config(given, Path("folder"))
    assert type(config) is EngineConfig
    assert (config.model, config.max_num_seqs) == ("folder", 7)
    assert "secret" not in str(dataclasses.asdict(config)) + str(given)
