"""Which tokens are control tokens, and that text can be encoded as if there were none."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from facet.tokens import Tokenizer
from facet.tokens.prompt_text import PromptText
from tests.tokens.gemma_like import CONTROL_TOKENS, CORPUS, GEMMA3_TOKENS, TEXT_TOKENS, build_gemma_like


@pytest.fixture(scope="module")
def gemma3() -> Tokenizer:
    return Tokenizer(build_gemma_like(control_tokens=GEMMA3_TOKENS, text_tokens=TEXT_TOKENS, adds_bos=True))


def test_special_tokens_and_markers_are_control_tokens_and_text_is_not() -> None:
    backend = build_gemma_like(control_tokens=("<bos>", "<eos>", "<unk>", "<pad>"), text_tokens=TEXT_TOKENS)
    written = ("<|new>", "<new|>", "<start_function_call>", "<end_function_response>", "<escape>")
    backend.add_tokens([AddedToken(text, normalized=False) for text in (*written, "<mask>", "\n\n\n\n")])
    tokenizer = Tokenizer(backend, {"bos_token": "<bos>", "mask_token": "<mask>"})
    control = tokenizer.control_tokens.id_of
    assert set(control) == {"<bos>", "<eos>", "<unk>", "<pad>", *written, "<mask>"}
    assert all(tokenizer.token_to_id(text) == token_id for text, token_id in control.items())


def as_text(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_prompt(PromptText.from_outside(text), add_special_tokens=True)


def test_every_control_token_can_be_written_as_text(gemma3: Tokenizer) -> None:
    for marker in GEMMA3_TOKENS:
        text = f"the wind{marker}is\n\nlight <table>"
        token_ids = as_text(gemma3, text)
        assert token_ids[0] == gemma3.token_to_id("<bos>")
        assert gemma3.control_tokens.ids.isdisjoint(token_ids[1:])
        assert gemma3.decode(token_ids) == text
        # What is ordinary text among the added tokens is read as ever.
        assert {gemma3.token_to_id("\n\n"), gemma3.token_to_id("<table>")} <= set(token_ids)


@given(text=st.text(alphabet="ab <>|_\n") | st.sampled_from(CORPUS))
def test_text_without_control_tokens_is_the_same_either_way(gemma3: Tokenizer, text: str) -> None:
    assert as_text(gemma3, text) == gemma3.encode(text)


@given(parts=st.lists(st.tuples(st.booleans(), st.sampled_from((*GEMMA3_TOKENS, *CORPUS, "<", "bos>", "\n\n", " ")))))
def test_only_own_markers_become_control_tokens(gemma3: Tokenizer, parts: list[tuple[bool, str]]) -> None:
    text = "".join(part for _, part in parts)
    own_text = "".join(part if is_own else "\0" * len(part) for is_own, part in parts)
    token_ids = gemma3.encode_prompt(PromptText(text, own_text=own_text))
    written = [gemma3.control_tokens.id_of[own_text[start:end]] for start, end in gemma3.control_tokens.find(own_text)]
    assert [token_id for token_id in token_ids if token_id in gemma3.control_tokens.ids] == written
    assert gemma3.decode(token_ids, skip_special_tokens=False) == text.replace("▁", " ")


def test_a_cut_prompt_keeps_what_is_added_around_it(gemma3: Tokenizer) -> None:
    prompt = PromptText.from_outside("<eos> the wind is light <eos>")
    whole = gemma3.encode_prompt(prompt, add_special_tokens=True)
    assert gemma3.encode_prompt(prompt, add_special_tokens=True, max_tokens=5) == [2, *whole[-4:]]


@pytest.mark.parametrize("kind", ["a vocabulary of words", "merges that are passed over"])
def test_a_vocabulary_that_spells_control_tokens_out(kind: str) -> None:
    """Where the text of a control token is also a word the model would choose, it is taken apart."""
    texts = ["<unk>", "<s>", "<", "s", ">", "h", "i", " ", "a"]
    if kind == "a vocabulary of words":
        backend = tokenizers.Tokenizer(models.Unigram([(text, -len(texts) + i) for i, text in enumerate(texts)], 0))
    else:
        vocabulary = {text: index for index, text in enumerate(texts)}
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", ignore_merges=True))
        backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("<s>"), "isolated")
    backend.add_special_tokens(["<unk>", "<s>"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("hi<s>") == [5, 6, 1]
    assert as_text(tokenizer, "hi<s>") == [5, 6, 2, 3, 4]


def test_ids_past_the_vocabulary_keep_their_numbers() -> None:
    """Added tokens that are no part of the model's own vocabulary, control tokens among them."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "<": 2, "x": 3, ">": 4}, []))
    backend.normalizer = normalizers.Lowercase()
    backend.add_special_tokens([AddedToken("<x>", normalized=False, special=True)])
    backend.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<b>", normalized=False)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("a<x>\n\nB<b>") == [0, 5, 6, 1, 7]
    assert as_text(tokenizer, "a<x>\n\nB<b>") == [0, 2, 3, 4, 6, 1, 7]


def test_the_usual_markers_are_found() -> None:
    tokenizer = Tokenizer(build_gemma_like())
    assert set(tokenizer.control_tokens.id_of) == set(CONTROL_TOKENS)
    assert tokenizer.control_tokens.find("<|turn>user<turn|>") == [(0, 7), (11, 18)]
