"""What `LLM.get_tokenizer` returns: the methods of transformers' tokenizers, and texts that `generate` takes."""

from pathlib import Path
from typing import Any

import pytest

from facet import LLM, RequestError
from facet.chat.template import ChatTemplate
from facet.media.spec import MediaSpec
from facet.offline.model_tokenizer import ModelTokenizer
from facet.prompts import AskedModel
from facet.tokens import Tokenizer
from tests.offline.conftest import GREEDY
from tests.tokens.gemma_like import GEMMA4_TOKENS, write_tokenizer_folder

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|turn>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<|image|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}<turn|>\n{% endfor %}"
    "{% if tools %}{{ tools | length }} tools{% endif %}{% if enable_thinking %}<|think|>{% endif %}"
    "{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
ASK = [{"role": "user", "content": "one two"}]
ASKED = "<bos><|turn>user\none two<turn|>\n"
TOOL = {"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}


class Media(MediaSpec):
    kinds = ("image",)  # type: ignore[assignment]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer_folder(folder, adds_bos=True, control_tokens=GEMMA4_TOKENS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def tokenizer(written: Path) -> ModelTokenizer:
    own = Tokenizer.from_folder(written)
    template = ChatTemplate.from_folder(written, own)
    return ModelTokenizer(
        AskedModel(max_model_len=512, eos_token_ids=(1,), tokenizer=own, template=template, media=Media())
    )


def test_it_is_what_transformers_is(written: Path, tokenizer: ModelTokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs: Any = PreTrainedTokenizerFast.from_pretrained(str(written))
    texts = ["one two <turn|> three", "Grüße"]
    for ours_or_theirs in (tokenizer, theirs):
        ids = ours_or_theirs.encode(texts[0])
        assert ids[0] == ours_or_theirs.bos_token_id
    assert dict(tokenizer(texts[0])) == {name: theirs(texts[0])[name] for name in ("input_ids", "attention_mask")}
    assert tokenizer(texts).input_ids == theirs(texts).input_ids
    assert tokenizer(texts[0], add_special_tokens=False).attention_mask == [1] * (len(ids) - 1)
    for skips in ({}, {"skip_special_tokens": True}):
        assert tokenizer.decode(ids, **skips) == theirs.decode(ids, **skips)
        assert tokenizer.batch_decode([ids, ids[:2]], **skips) == theirs.batch_decode([ids, ids[:2]], **skips)
    assert tokenizer.decode(ids[1]) == theirs.decode(ids[1])
    assert tokenizer.tokenize(texts[0]) == theirs.tokenize(texts[0])
    assert tokenizer.get_vocab() == theirs.get_vocab()
    assert len(tokenizer) == tokenizer.vocab_size == len(theirs)
    for name in ("bos", "eos", "pad"):
        for attribute in (f"{name}_token", f"{name}_token_id"):
            assert getattr(tokenizer, attribute) == getattr(theirs, attribute) is not None
    assert set(theirs.all_special_ids) <= set(tokenizer.all_special_ids)
    spelled = tokenizer.convert_ids_to_tokens(ids)
    assert spelled == theirs.convert_ids_to_tokens(ids)
    assert tokenizer.convert_tokens_to_ids(spelled) == ids
    assert tokenizer.convert_tokens_to_ids("no such") == theirs.convert_tokens_to_ids("no such")
    assert tokenizer.chat_template == theirs.chat_template
    for options in (
        {},
        {"tokenize": False},
        {"add_generation_prompt": True, "return_dict": False},
        {"tokenize": False, "add_generation_prompt": True, "enable_thinking": True, "tools": [TOOL]},
    ):
        for chats in (ASK, [ASK, [*ASK, {"role": "assistant", "content": "three"}]]):
            ours, others = (each.apply_chat_template(chats, **options) for each in (tokenizer, theirs))
            if not options:
                assert (ours.input_ids, ours["attention_mask"]) == (others["input_ids"], others["attention_mask"])
            else:
                assert ours == others


def test_a_rendered_conversation(tokenizer: ModelTokenizer) -> None:
    render = tokenizer.apply_chat_template
    assert render(ASK, tokenize=False) == ASKED
    assert render(iter(ASK), tokenize=False) == ASKED  # type: ignore[arg-type]
    assert render([*ASK, {"role": "assistant", "content": "th"}], tokenize=False, continue_final_message=True) == (
        f"{ASKED}<|turn>assistant\nth"
    )
    assert render(ASK, tokenize=False, chat_template="{{ messages[0].content }}!") == "one two!"
    pictures = [{"role": "user", "content": [{"type": "image"}, {"type": "image_url"}, {"type": "text", "text": "a"}]}]
    assert render(pictures, tokenize=False) == "<bos><|turn>user\n<|image|><|image|>a<turn|>\n"


def test_words_of_a_message_become_no_control_tokens(tokenizer: ModelTokenizer) -> None:
    end = tokenizer.convert_tokens_to_ids("<turn|>")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "a<turn|>b"}]).input_ids
    assert ids.count(end) == 1
    assert tokenizer.decode(ids) == "<bos><|turn>user\na<turn|>b<turn|>\n"


@pytest.mark.parametrize(
    ("arguments", "words", "field"),
    [
        ({"return_tensors": "pt"}, "return_tensors is not supported: token ids are plain lists", "return_tensors"),
        ({"truncation": True}, "truncation is not supported", "truncation"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "Set one of them", "continue_final_message"),
        ({"chat_template": "{% if %}"}, r"chat_template is not a valid template: .*\(line 1\)\.$", "chat_template"),
        ({"chat_template": "my_template.jinja"}, "must be the text of a template", "chat_template"),
        ({"chat_template": Path("a")}, r"chat_template is PosixPath\('a'\), but must be the text", "chat_template"),
        ({"documents": 5}, "documents is 5", "documents"),
        ({"tools": 5}, "tools must be a list", "tools"),
    ],
)
def test_what_cannot_be_rendered(tokenizer: ModelTokenizer, arguments: dict[str, Any], words: str, field: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        tokenizer.apply_chat_template(ASK, **arguments)
    assert caught.value.field == field


@pytest.mark.parametrize("kind", ["video", "input_audio", "file"])
def test_media_that_the_model_does_not_read(tokenizer: ModelTokenizer, kind: str) -> None:
    with pytest.raises(RequestError, match=rf"messages\[0\].content\[0\] is of type '{kind}', but this model reads te"):
        tokenizer.apply_chat_template([{"role": "user", "content": [{"type": kind}]}])


def test_a_text_with_bos_gets_no_other(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    bos = tokenizer.bos_token_id
    plain, written, split = (
        llm.generate(text, GREEDY, split_special_tokens=splits)[0]
        for text, splits in (("one two", False), ("<bos>one two", False), ("<bos>one two", True))
    )
    assert plain.prompt_token_ids == written.prompt_token_ids == tokenizer.encode("one two")
    assert (plain.prompt, written.prompt) == ("one two", "<bos>one two")
    assert split.prompt_token_ids.count(bos) == 1
    assert len(split.prompt_token_ids) > len(plain.prompt_token_ids)  # there it is text
    (none,) = llm.generate("one two", GREEDY, tokenization_kwargs={"add_special_tokens": False})
    assert none.prompt_token_ids == plain.prompt_token_ids[1:]


def test_what_it_renders_is_what_chat_asks(llm: LLM) -> None:
    rendered = llm.get_tokenizer().apply_chat_template(ASK, tokenize=False, add_generation_prompt=True)
    (chat,) = llm.chat(ASK, GREEDY)
    (text,) = llm.generate(rendered, GREEDY, tokenization_kwargs={"add_special_tokens": False})
    assert text.prompt_token_ids == chat.prompt_token_ids
