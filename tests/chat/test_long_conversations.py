"""A conversation that cannot fit is refused before all of it is rendered; one that may fit never is."""

import random
import tracemalloc
from pathlib import Path

import pytest

from facet.chat import ChatTemplate, template
from facet.chat.template_values import shortened
from facet.errors import RequestError
from facet.tokens import Tokenizer
from facet.tokens.prompt_text import PromptText
from facet.tokens.text_limit import TextLimit
from tests.chat.conversations import assistant, user
from tests.chat.random_conversations import make_conversation
from tests.tokens.gemma_like import GEMMA4_TOKENS, build_gemma_like

TOKENIZER = Tokenizer(build_gemma_like(control_tokens=GEMMA4_TOKENS))
TOKENS = {"special_tokens": TOKENIZER.special_tokens, "control_texts": TOKENIZER.control_tokens.id_of}
GEMMA4 = ChatTemplate((Path(__file__).parent / "gemma4_like.jinja").read_text(encoding="utf-8"), **TOKENS)
# What is written about thoughts elsewhere: only what follows the last marker, or precedes the first, is kept.
CUTTING = ChatTemplate(
    "{% for m in messages %}{{ m.role }}:"
    "{% set text = m.content if m.content is string else m.content | map(attribute='text') | join %}"
    "{{ text.split('</think>')[-1] if m.role == 'assistant' else text.split('<channel|>')[0] | trim }}"
    "\n{% endfor %}",
    **TOKENS,
)
MARKERS = ("<|channel>thought\n", "<channel|>", "</think>", "<turn|>")


def random_text(rng: random.Random) -> str:
    """Mostly short; some are longer than the context, with markers anywhere."""
    num_parts = rng.choice((1,) * 30 + (10, 600))
    parts = [rng.choice("abcde fgh ") * rng.randint(1, 40) for _ in range(num_parts)]
    for _ in range(rng.choice((0, 1, 2, 3))):
        parts.insert(rng.randint(0, len(parts)), rng.choice(MARKERS))
    return "".join(parts)


@pytest.mark.parametrize("chat_template", [GEMMA4, CUTTING], ids=["gemma 4", "cutting"])
def test_only_what_cannot_fit_is_refused(chat_template: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "LONG_CONVERSATION", 0)
    counts = {"early": 0, "late": 0, "never": 0}
    for seed in range(80):
        rng = random.Random(seed)
        limit = TextLimit(TOKENIZER, rng.choice((20, 100, 700)))
        has_tools = chat_template is GEMMA4
        messages, arguments = make_conversation(rng, lambda _, rng=rng: random_text(rng), has_tools=has_tools)
        whole = chat_template.render(messages, **arguments)
        exceeds = TOKENIZER.surely_exceeds(whole.text, limit.max_tokens)
        try:
            rendered = chat_template.render(messages, **arguments, limit=limit)
        except RequestError:
            outcome = "early"
        else:
            assert rendered == whole
            outcome = "late" if exceeds else "never"
        counts[outcome] += 1
        assert exceeds or outcome == "never"
    assert min(counts["early"], counts["never"]) > 10
    assert counts["late"] < counts["early"] // 4  # those from which a thought was cut


def test_a_long_thought_that_is_left_out_does_not_count() -> None:
    thought = "<|channel>thought\n" + "a " * 100_000 + "<channel|>"
    limit = TextLimit(TOKENIZER, 100)
    prompt = GEMMA4.render([user("hi"), assistant(thought + "yes"), user("and?")], limit=limit)
    assert len(TOKENIZER.encode_prompt(prompt)) < 100


@pytest.mark.parametrize("text", ["one two ", "one <turn|> ", "one 🙂 "])
@pytest.mark.parametrize("num_messages", [1, 400])
def test_refusing_takes_little_memory(text: str, num_messages: int) -> None:
    messages = [user(text * (4_000_000 // len(text) // num_messages)) for _ in range(num_messages)]
    tracemalloc.start()
    try:
        with pytest.raises(
            RequestError, match=r"prompt is too long: .* more than 100 tokens, .* context length is 100\."
        ):
            GEMMA4.render(messages, limit=TextLimit(TOKENIZER, 100))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_without_a_bound_on_the_length_of_texts_all_of_it_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "max_characters", lambda *_: None)
    messages = [user("one two " * 20_000)]
    with pytest.raises(RequestError, match=r"at least 16\d,\d\d\d characters and therefore more than 100 tokens"):
        GEMMA4.render(messages, limit=TextLimit(TOKENIZER, 100))
    assert isinstance(GEMMA4.render(messages), PromptText)


def test_shortened_values_keep_their_shape() -> None:
    value = {"a": ["x" * 40 + "y" * 40, 1.5, None, ("short",)], "k" * 99: {"b": "z" * 64}}
    assert shortened(value, 4) == {"a": ["xxxxyyyy", 1.5, None, ("short",)], "k" * 8: {"b": "z" * 64}}
