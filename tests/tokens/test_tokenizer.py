"""One tokenizer, many threads; and every broken folder says in one line what is wrong with it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from facet.errors import CheckpointError, RequestError
from facet.tokens import Tokenizer
from facet.tokens.prompt_text import PromptText
from tests.tokens.gemma_like import CORPUS, build_gemma_like, write_tokenizer_folder

ZWJ_FAMILY = "👩‍👩‍👧‍👦"
AWKWARD_TEXTS = (
    *("", " ", "  leading and trailing  ", "\n\n", "▁", "a▁b", "é", "e\u0301", "\x00\x7f", "\u200d"),
    *(ZWJ_FAMILY, "🏳️‍🌈 flag", "𒀀𒀁", "日本語 text", "<bos>hi<eos>", "<0x41>", "\ufffd", "नमस्ते", "\U0010ffff"),
)


@pytest.mark.parametrize("text", AWKWARD_TEXTS)
def test_decoding_gives_back_awkward_texts(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    # "▁" and a space are one and the same to this vocabulary, as they are to Gemma's.
    assert tokenizer.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")


@given(text=st.text())
def test_decoding_gives_back_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text.replace("▁", " ")


def test_special_tokens_are_added_only_on_request(tokenizer_adding_bos: Tokenizer) -> None:
    plain = tokenizer_adding_bos.encode("the wind", add_special_tokens=False)
    assert tokenizer_adding_bos.encode("the wind") == [2, *plain]
    assert tokenizer_adding_bos.decode([2, *plain]) == "the wind"
    assert tokenizer_adding_bos.decode([2, *plain], skip_special_tokens=False) == "<bos>the wind"


def test_special_ids_come_from_the_checkpoint(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_tokenizer_folder(tmp_path))
    assert tokenizer.eos_id == 1
    assert tokenizer.special_tokens["bos_token"] == "<bos>"
    assert tokenizer.special_tokens["mask_token"] == "<mask>"
    assert tokenizer.token_to_id("<|turn>") in tokenizer.special_ids
    assert tokenizer.token_to_id("<0x0A>") not in tokenizer.special_ids
    assert tokenizer.token_to_id("no such token") is None
    assert tokenizer.id_to_token(tokenizer.vocab_size) is None
    assert tokenizer.id_to_token(tokenizer.vocab_size - 1) is not None


def test_usual_names_serve_without_a_tokenizer_config(tmp_path: Path) -> None:
    build_gemma_like().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_id == 1
    assert tokenizer.special_tokens["bos_token"] == "<bos>"


def test_ids_past_the_vocabulary_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.vocab_size + 5, *tokenizer.encode("wind")]) == "wind"


def cut(tokenizer: Tokenizer, text: str, max_tokens: int | None) -> list[int]:
    return tokenizer.encode_prompt(PromptText(text), add_special_tokens=True, max_tokens=max_tokens)


class TestCuttingToALength:
    @given(text=st.text(max_size=60), max_tokens=st.integers(1, 40))
    def test_keeps_the_end_and_the_added_tokens(
        self, tokenizer_adding_bos: Tokenizer, text: str, max_tokens: int
    ) -> None:
        own = tokenizer_adding_bos.encode(text, add_special_tokens=False)
        num_kept = min(len(own), max_tokens - 1)
        assert cut(tokenizer_adding_bos, text, max_tokens) == [2, *own[len(own) - num_kept :]]

    def test_a_special_token_written_in_the_text_is_cut_like_any_other(self, tokenizer_adding_bos: Tokenizer) -> None:
        assert cut(tokenizer_adding_bos, "<bos>one<eos>", 2) == [2, 1]

    def test_agrees_with_transformers(self, tmp_path: Path) -> None:
        folder = write_tokenizer_folder(tmp_path, adds_bos=True)
        oracle = transformers.AutoTokenizer.from_pretrained(folder, truncation_side="left")
        tokenizer = Tokenizer.from_folder(folder)
        for text in CORPUS:
            expected = oracle(text, truncation=True, max_length=7)["input_ids"]
            assert cut(tokenizer, text, 7) == expected

    def test_no_room_for_the_added_tokens_is_refused(self, tokenizer_adding_bos: Tokenizer) -> None:
        with pytest.raises(RequestError, match="at least 1"):
            cut(tokenizer_adding_bos, "the wind", 0)

    def test_settings_stored_in_the_file_do_not_cut_or_pad(self, tmp_path: Path) -> None:
        backend = build_gemma_like()
        expected = backend.encode(CORPUS[0]).ids
        backend.enable_truncation(max_length=3)
        backend.enable_padding(length=100)
        backend.save(str(tmp_path / "tokenizer.json"))
        assert Tokenizer.from_folder(tmp_path).encode(CORPUS[0]) == expected


def test_threads_share_one_tokenizer_without_a_failure(tokenizer_adding_bos: Tokenizer) -> None:
    # Lengths differ from call to call: what breaks a shared tokenizer elsewhere is "cut to this length".
    texts = [text * repeats for text in (*CORPUS, *AWKWARD_TEXTS) for repeats in (1, 3)]
    lengths = (None, 3, 8, 21)
    expected = {(text, length): cut(tokenizer_adding_bos, text, length) for text in texts for length in lengths}
    start_together = threading.Barrier(8)

    def hammer(offset: int) -> int:
        start_together.wait()
        num_calls = 0
        for repeat in range(5):
            for index, (text, length) in enumerate(expected):
                length = lengths[(index + offset + repeat) % len(lengths)]
                ids = cut(tokenizer_adding_bos, text, length)
                assert ids == expected[text, length]
                assert tokenizer_adding_bos.decode(ids) == tokenizer_adding_bos.decode(list(ids))
                num_calls += 1
        return num_calls

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert sum(pool.map(hammer, range(8))) == 8 * 5 * len(expected)


class TestBadInput:
    def test_half_a_surrogate_pair_is_refused_by_name(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(RequestError, match=r"U\+D83D at position 3"):
            tokenizer.encode("abc\ud83d")

    def test_missing_tokenizer(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"has no tokenizer\.json\. Download"):
            Tokenizer.from_folder(tmp_path)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
            Tokenizer.from_folder(tmp_path / "nowhere")

    def test_only_the_older_format(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
        with pytest.raises(CheckpointError, match=r"tokenizer\.model, the older format"):
            Tokenizer.from_folder(tmp_path)

    @pytest.mark.parametrize("contents", ["", "{", "[]", '{"version": "1.0"}', "\x00\x01"])
    def test_broken_tokenizer(self, tmp_path: Path, contents: str) -> None:
        (tmp_path / "tokenizer.json").write_text(contents)
        with pytest.raises(CheckpointError, match=r"cannot be read as a tokenizer") as caught:
            Tokenizer.from_folder(tmp_path)
        assert "\n" not in str(caught.value)

    def test_truncated_tokenizer(self, tmp_path: Path) -> None:
        whole = build_gemma_like().to_str()
        (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"cannot be read as a tokenizer"):
            Tokenizer.from_folder(tmp_path)

    def test_empty_vocabulary(self, tmp_path: Path) -> None:
        description = json.loads(build_gemma_like().to_str())
        description["added_tokens"] = []
        description["model"].update(vocab={}, merges=[], unk_token=None)
        (tmp_path / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
        with pytest.raises(CheckpointError, match="no token with visible text"):
            Tokenizer.from_folder(tmp_path)

    @pytest.mark.parametrize(("contents", "words"), [("{", "cannot be read"), ("[1]", "holds a JSON list")])
    def test_broken_tokenizer_config(self, tmp_path: Path, contents: str, words: str) -> None:
        (write_tokenizer_folder(tmp_path) / "tokenizer_config.json").write_text(contents)
        with pytest.raises(CheckpointError, match=words) as caught:
            Tokenizer.from_folder(tmp_path)
        assert "\n" not in str(caught.value)

    def test_a_named_token_that_does_not_exist(self, tmp_path: Path) -> None:
        (write_tokenizer_folder(tmp_path) / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
        with pytest.raises(CheckpointError, match=r"names '<end>' as eos_token"):
            Tokenizer.from_folder(tmp_path)
