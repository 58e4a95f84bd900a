"""What a template sees, what it may do, and where it is found. Model formats: test_gemma_formats.py."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from facet.chat import ChatTemplate
from facet.errors import CheckpointError, RequestError
from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL, user
from tests.tokens.gemma_like import build_gemma_like

HELLO = [user("hello")]


def render(source: str, *, variables: dict[str, Any] | None = None, **arguments: Any) -> str:
    messages = arguments.pop("messages", HELLO)
    template = ChatTemplate(source, special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"})
    return template.render(messages, variables=variables, **arguments).text


class TestWhatATemplateSees:
    def test_its_variables(self) -> None:
        source = (
            "{{ bos_token }}|{{ eos_token }}|{{ messages[0]['content'] }}|{{ tools[0]['function']['name'] }}|"
            "{{ documents[0]['title'] }}|{{ add_generation_prompt }}|{{ enable_thinking }}"
        )
        text = render(source, tools=[WEATHER_TOOL], documents=[{"title": "Tides"}], variables={"enable_thinking": True})
        assert text == "<bos>|<eos>|hello|get_weather|Tides|True|True"

    def test_tools_are_none_and_the_reply_is_opened_unless_said_otherwise(self) -> None:
        source = "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}"
        assert render(source) == "True True True"
        assert render(source, add_generation_prompt=False) == "True True False"

    def test_an_unknown_variable_is_undefined(self) -> None:
        assert render("{{ enable_thinking is defined }}|{{ enable_thinking }}") == "False|"

    def test_blocks_leave_no_blank_lines(self) -> None:
        source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
        assert render(source) == "hello\n"

    def test_loops_can_break_and_continue(self) -> None:
        skip_one = "{% if i == 1 %}{% continue %}{% endif %}"
        stop_at_three = "{% if i == 3 %}{% break %}{% endif %}"
        source = "{% for i in range(9) %}" + skip_one + stop_at_three + "{{ i }}{% endfor %}"
        assert render(source) == "02"

    def test_json_is_plain(self) -> None:
        value = {"b": "<é> & '\"", "a": [1, None, True]}
        assert render("{{ value | tojson }}", variables={"value": value}) == json.dumps(value, ensure_ascii=False)
        assert render("{{ value | tojson(indent=2) }}", variables={"value": value}) == json.dumps(
            value, ensure_ascii=False, indent=2
        )
        assert render("{{ value | tojson(sort_keys=true, ensure_ascii=true) }}", variables={"value": value}) == (
            json.dumps(value, sort_keys=True)
        )

    def test_the_date(self) -> None:
        before = datetime.now().strftime("%Y %j %H")
        rendered = render("{{ strftime_now('%Y %j %H') }}")
        assert before <= rendered <= datetime.now().strftime("%Y %j %H")

    def test_training_marks_render_their_contents(self) -> None:
        marked = "{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}"
        assert render("{% for m in messages %}" + marked + "{% endfor %}!") == "hello1!"

    def test_tool_conversations_use_the_template_named_for_them(self) -> None:
        template = ChatTemplate({"default": "plain", "tool_use": "with tools"})
        assert template.render(HELLO).text == "plain"
        assert template.render(HELLO, tools=[WEATHER_TOOL]).text == "with tools"


class TestErrors:
    def test_the_templates_own_words_reach_the_client(self) -> None:
        with pytest.raises(RequestError, match="roles must alternate") as caught:
            render("{{ raise_exception('roles must alternate') }}")
        assert caught.value.field == "messages"

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("{{ messages[3].content.text }}", "UndefinedError"),
            ("{{ messages[0].content + 1 }}", "TypeError"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
            ("{{ nothing | tojson }}", "TypeError"),
            ("{{ range(10000000) | list | length }}", "OverflowError"),
            ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError"),
        ],
    )
    def test_whatever_goes_wrong_inside_is_an_error_of_the_request(self, source: str, words: str) -> None:
        with pytest.raises(RequestError, match=rf"cannot render this conversation \({words}"):
            render(source)

    def test_a_variable_cannot_replace_the_conversation(self) -> None:
        with pytest.raises(RequestError, match="cannot be called 'messages'") as caught:
            render("{{ messages }}", variables={"messages": []})
        assert caught.value.field == "chat_template_kwargs"

    def test_a_template_that_does_not_parse_names_the_line(self) -> None:
        with pytest.raises(CheckpointError, match=r"not a valid template: .* \(line 2\)"):
            ChatTemplate("{{ messages }}\n{% if %}")

    def test_named_templates_need_a_default(self) -> None:
        with pytest.raises(CheckpointError, match="'tool_use', 'rag' and none named 'default'"):
            ChatTemplate({"tool_use": "a", "rag": "b"})


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.__class__.__base__ }}{{ messages.__class__.__base__.__subclasses__() }}",
            "{{ raise_exception.__globals__['json'] }}",
            "{{ cycler.__init__.__globals__.os.system('true') }}",
            "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context.environment.globals.x.y }}",
            "{{ '{0.__class__.__mro__}'.format(messages) }}",
            "{{ messages.append('intruder') }}",
            "{{ messages[0].update(role='system') }}",
            "{{ messages[0].pop('role') }}",
            "{{ bos_token.format_map.__self__.__class__() }}{{ ().__class__.__bases__[0]() }}",
            "{% include 'pyproject.toml' %}",
            "{% import 'os' as os %}",
        ],
    )
    def test_no_way_out(self, source: str) -> None:
        messages = [user("hello")]
        with pytest.raises(RequestError):
            render(source, messages=messages)
        assert messages == [user("hello")]

    def test_an_attribute_of_the_interpreter_is_empty(self) -> None:
        assert render("[{{ ''.__class__ }}{{ messages.__class__ }}]") == "[]"

    def test_one_rendering_leaves_nothing_for_the_next(self) -> None:
        template = ChatTemplate("{% set seen = seen | default(0) + 1 %}{{ seen }}{{ messages[0].content }}")
        assert [template.render([user(word)]).text for word in "ab"] == ["1a", "1b"]

    def test_threads_may_render_at_once(self) -> None:
        template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
        with ThreadPoolExecutor(max_workers=8) as pool:
            texts = pool.map(lambda number: template.render([user(f"{number} ")] * 20).text, range(200))
            assert list(texts) == [f"{number} " * 20 for number in range(200)]


class TestFindingTheTemplate:
    def test_a_file_of_its_own_comes_first(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_text("from the file {{ bos_token }}")
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "from the config"}')
        template = ChatTemplate.from_folder(tmp_path, Tokenizer(build_gemma_like()))
        assert template is not None
        assert template.render(HELLO).text == "from the file <bos>"

    def test_then_the_tokenizer_config(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "from the config"}')
        template = ChatTemplate.from_folder(tmp_path)
        assert template is not None
        assert template.render(HELLO).text == "from the config"

    def test_which_may_hold_several(self, tmp_path: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        template = ChatTemplate.from_folder(tmp_path)
        assert template is not None
        assert template.render(HELLO, tools=[WEATHER_TOOL]).text == "with tools"

    @pytest.mark.parametrize("config", [None, "{}", '{"chat_template": null}'])
    def test_a_model_that_does_not_chat_has_none(self, tmp_path: Path, config: str | None) -> None:
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(config)
        assert ChatTemplate.from_folder(tmp_path) is None

    @pytest.mark.parametrize("entry", [3, [], ["text"], [{"name": "default"}], [{"name": "a", "template": "b"}] * 2])
    def test_a_malformed_entry_is_named(self, tmp_path: Path, entry: object) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
        with pytest.raises(CheckpointError, match=r"chat_template in .*tokenizer_config\.json is neither"):
            ChatTemplate.from_folder(tmp_path)

    def test_a_broken_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_text("{% endfor %}")
        with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not a valid template"):
            ChatTemplate.from_folder(tmp_path)

    def test_a_file_that_is_no_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
            ChatTemplate.from_folder(tmp_path)
