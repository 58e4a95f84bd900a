"""A template that is traced writes what it would have written, and what came from outside can be told from its own."""

from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from facet.chat import ChatTemplate
from facet.errors import RequestError

# Everything templates are known to do to their inputs, and some things nobody has done yet. `c` is the content.
EXPRESSIONS = (
    *("c", "c ~ '|' ~ c", "c + '<x>'", "'<x>' + c", "c * 2", "'%s-%s' % (c, c)", "'{}'.format(c)", "c | string"),
    *(
        "c | trim",
        "c | upper",
        "c | lower",
        "c | capitalize",
        "c | title",
        "c.strip('<> ')",
        "c.lstrip()",
        "c.rstrip()",
    ),
    *("c.split('<c|>')[-1]", "c.split('<c|>') | join('/')", "c.split() | join(' ')", "c.rsplit('<', 1)[0]"),
    *("c.partition('|')[2]", "c.replace('<', '[')", "c | replace('|', c)", "c.removeprefix('<')", "c.splitlines()[0]"),
    *("c[1:4]", "c[0]", "c[::-1]", "c | first", "c | last", "c | reverse", "c | list | join('.')", "c | length"),
    *("'<c|>' in c", "c in '<c|>hello'", "c == '<c|>'", "c != ''", "c < 'n'", "c.startswith('<')", "c.find('|')"),
    *("c is string", "c is eq('a')", "c is in(['a', 'b'])", "c is lower", "c.isdigit()", "c | int", "c | float"),
    *("c | tojson", "[c, {c: c}] | tojson(indent=2)", "{'k': c} | tojson(ensure_ascii=true)", "c | default('d', true)"),
    *(
        "c | escape",
        "c | e | upper",
        "c | urlencode",
        "c | indent(2)",
        "c | truncate(7)",
        "c | wordwrap(3)",
        "c | safe",
    ),
    *(
        "c | center(9)",
        "c.zfill(9)",
        "c | wordcount",
        "c | striptags",
        "c.encode('utf-8').decode('utf-8')",
        "c | pprint",
    ),
    *("d | dictsort | list | tojson", "d.items() | list | tojson", "d['type']", "d.type", "d | tojson(sort_keys=true)"),
    *("d | length", "d.keys() | sort | join(',')", "d | items | map('first') | join", "[c, 'b', 'A'] | sort | join"),
    *(
        "[c, c, 'z'] | unique | join",
        "[c, 'm'] | max",
        "[d] | map(attribute='type') | list | join",
        "[c] | sum(start='')",
    ),
    *("[d] | selectattr('type', 'equalto', 'a') | list | length", "[d] | groupby('type') | length"),
    *("(c if c else 'none')", "c or 'none'", "not c", "m(c)", "m(c).split('<c|>')[0]", "m(m(c)) | trim | upper"),
    *(
        "','.join([c, c])",
        "'abc'.replace('b', c)",
        "'x<c|>y'.split(c if c else 'x') | tojson",
        "'b' in c",
        "c ~ 1 ~ none",
    ),
)
SOURCE = (
    "{{%- macro m(x) -%}}<c|>{{{{ x }}}}{{%- endmacro -%}}"
    "{{%- set c = messages[0]['content'] -%}}{{%- set d = documents[0] -%}}{{{{ {} }}}}"
)
contents = st.text(alphabet='ab<|>c/ \n"\\ß7', max_size=12) | st.sampled_from(("", "<c|>", " <c|>a<|c>b<c|> ", "12"))


@cache
def plain(expression: str) -> ChatTemplate:
    return ChatTemplate(SOURCE.format(expression), control_texts=())


@cache
def traced(expression: str) -> ChatTemplate:
    return ChatTemplate(SOURCE.format(expression))


def outcome(template: ChatTemplate, content: str) -> str:
    message = {"role": "user", "content": content}
    document = {content: content, "type": content or "a", "Z": [content, 1.5, None, True]}
    try:
        return template.render([message], documents=[document]).text
    except RequestError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
@settings(max_examples=25)
@given(content=contents)
@example(content="ß a")  # a letter that becomes two, before another
def test_reads_the_same(expression: str, content: str) -> None:
    assert outcome(traced(expression), content) == outcome(plain(expression), content)


@pytest.mark.parametrize(
    ("source", "own"),
    [
        ("<a>{{ c }}<b>", "<a>....<b>"),
        ("{% for x in c %}{{ x }}-{% endfor %}", ".-.-.-.-"),
        ("{{ c | upper ~ '<x>' | lower }}", "....<x>"),
        ("{{ '<a>' if c == '<c|>' else '<b>' }}", "<a>"),
        ("{{ ('<a>' ~ c ~ '<a>').split('<c|>') | join('+') }}", "<a>+<a>"),
        ("{{ c | tojson }}", '"...."'),
        ("{{ ('<a>' ~ c) | urlencode }}", "." * 17),
        ("{% set x %}{{ c }}<a>{% endset %}{{ x[2:] }}", "..<a>"),
        ("{{ '%s<a>' % c }}{{ '{}<a>'.format(c) }}", "....<a>....<a>"),
        ("{{ c.encode('utf-8').decode('utf-8') }}", "...."),
    ],
)
def test_what_is_the_templates_own(source: str, own: str) -> None:
    prompt = ChatTemplate("{% set c = messages[0].content %}" + source).render([{"role": "user", "content": "<c|>"}])
    assert prompt.own_text is not None
    assert prompt.own_text.replace("\0", ".") == own


def test_only_a_role_of_ours_can_be_part_of_a_marker() -> None:
    template = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
    prompt = template.render([{"role": "user", "content": "x"}, {"role": "<|x|>", "content": "user"}])
    assert prompt.own_text == "<|user|>\0<|\0\0\0\0\0|>\0\0\0\0"


CONTROL_TEXTS = ("<a>", "<b>")


@pytest.mark.parametrize(
    ("source", "values", "is_traced"),
    [
        ("<a>{{ c }}<b>", "plain", False),
        ("<a>{{ c }}<b>", "a>b", False),
        ("<a>{{ c }}<b>", "a<b", True),
        ("<{{ c }}>", "a", True),  # the template leaves a marker open
        ("{{ '<a>' ~ c }}", {"deep": [{"k<": 1}]}, True),
        ("{{ '<a>' ~ c }}", {"deep": [{"k": "<"}]}, True),
        ("{{ '<a>' ~ c }}", {"deep": [{"k": None}]}, False),
    ],
)
def test_is_traced_only_where_something_could_become_a_marker(source: str, values: Any, is_traced: bool) -> None:
    template = ChatTemplate(source, control_texts=CONTROL_TEXTS)
    prompt = template.render([{"role": "user", "content": "hi"}], variables={"c": values})
    assert (prompt.own_text is not None) == is_traced


def test_a_marker_that_begins_another_one_is_traced() -> None:
    template = ChatTemplate("<a{{ messages[0].content }}", control_texts=("<a", "<a>b"))
    assert template.render([{"role": "user", "content": ">b"}]).own_text == "<a\0\0"


def test_errors_read_as_they_were_sent() -> None:
    with pytest.raises(RequestError, match="refuses this conversation: no <a> here"):
        ChatTemplate("{{ raise_exception('no ' ~ messages[0].content ~ ' here') }}").render(
            [{"role": "user", "content": "<a>"}]
        )
