"""Parts add up to the whole decode, for every sequence of ids and every make of decoder."""

import codecs
from collections.abc import Callable, Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from facet.tokens import Detokenizer, Tokenizer
from facet.tokens.text_offsets import TextOffsets
from facet.tokens.tokenizer import is_byte_token
from tests.tokens.gemma_like import CORPUS, build_gemma_like

NUM_IDS = 620  # a little past the end of the test vocabularies


def parts_of(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def whole(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """The decode of all ids, less those at the end that are the bytes of half a character."""
    skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
    shown = [token_id for token_id in ids if token_id not in skipped and tokenizer.id_to_token(token_id) is not None]
    decode_bytes = codecs.getincrementaldecoder("utf-8")("replace")
    for token_id in shown:
        token = tokenizer.id_to_token(token_id) or ""
        if is_byte_token(token):
            decode_bytes.decode(bytes([int(token[3:5], 16)]))
        else:
            decode_bytes.reset()
    num_half = len(decode_bytes.getstate()[0])
    if "\ufffd" not in tokenizer.decode(shown[len(shown) - num_half :], skip_special_tokens=False):
        num_half = 0  # a decoder that has no notion of bytes
    return tokenizer.decode(shown[: len(shown) - num_half], skip_special_tokens=False)


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    found = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]
    return [token_id for token_id in found if token_id is not None]


def with_decoder(decoder: decoders.Decoder | None) -> Callable[[], Tokenizer]:
    def build() -> Tokenizer:
        backend = build_gemma_like()
        backend.decoder = decoder
        return Tokenizer(backend)

    return build


def byte_level() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([*CORPUS, "日本語" * 3, "🙂🙃" * 3], trainer)
    return Tokenizer(backend)


REPLACE, BYTES, FUSE = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
MAKES: dict[str, Callable[[], Tokenizer]] = {
    "gemma": with_decoder(decoders.Sequence([REPLACE, BYTES, FUSE])),
    "strips one leading space": with_decoder(decoders.Sequence([REPLACE, BYTES, FUSE, decoders.Strip(" ", 1, 0)])),
    "strips two leading spaces": with_decoder(decoders.Sequence([REPLACE, BYTES, FUSE, decoders.Strip(" ", 2, 0)])),
    "metaspace": with_decoder(decoders.Metaspace(prepend_scheme="always")),
    "no decoder": with_decoder(None),
    "byte level": byte_level,
}


@pytest.fixture(scope="module", params=MAKES.values(), ids=MAKES.keys())
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    built: Tokenizer = request.param()
    return built


@given(ids=st.lists(st.integers(0, NUM_IDS), max_size=30), skip_special_tokens=st.booleans())
def test_any_ids_add_up_to_the_whole_decode(
    any_tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool
) -> None:
    parts = parts_of(any_tokenizer, ids, skip_special_tokens=skip_special_tokens)
    assert "".join(parts) == whole(any_tokenizer, ids, skip_special_tokens=skip_special_tokens)


@given(
    runs=st.lists(
        st.one_of(
            st.sampled_from(["é", "🙂", "𒀀", "\n", "A", "\x00"]).map(str.encode),
            st.binary(min_size=1, max_size=3),
            st.integers(256, NUM_IDS),
        ),
        max_size=15,
    )
)
def test_runs_of_bytes_valid_or_not_add_up(tokenizer: Tokenizer, runs: list[bytes | int]) -> None:
    ids = [token_id for run in runs for token_id in (byte_ids(tokenizer, run) if isinstance(run, bytes) else [run])]
    assert "".join(parts_of(tokenizer, ids)) == whole(tokenizer, ids)


@given(
    runs=st.lists(
        st.one_of(
            st.text(alphabet="é你🙂𒀀\nA", min_size=1, max_size=3).map(str.encode),
            st.integers(0, NUM_IDS),
        ),
        max_size=12,
    ),
    half=st.binary(max_size=2),
    skip_special_tokens=st.booleans(),
)
def test_offsets_are_where_tokens_stand(
    any_tokenizer: Tokenizer, runs: list[bytes | int], half: bytes, skip_special_tokens: bool
) -> None:
    """Whatever the decoder: tokens of whole characters are found at their offsets, none is beyond the text."""
    ids = [i for run in runs for i in (byte_ids(any_tokenizer, run) if isinstance(run, bytes) else [run])]
    ids += byte_ids(any_tokenizer, half)
    places = TextOffsets(any_tokenizer, skip_special_tokens=skip_special_tokens)
    offsets = [places.push(token_id) for token_id in ids]
    text = "".join(parts_of(any_tokenizer, ids, skip_special_tokens=skip_special_tokens))
    assert offsets == sorted(offsets)
    assert all(0 <= offset <= len(text) for offset in [*offsets, places.end])
    for index, (token_id, offset) in enumerate(zip(ids, offsets, strict=True)):
        token = any_tokenizer.id_to_token(token_id)
        shown = any_tokenizer.decode_continuation([token_id])
        is_hidden = token is None or (skip_special_tokens and token_id in any_tokenizer.special_ids)
        if not is_hidden and not is_byte_token(token or "") and "\ufffd" not in shown and offset:
            assert text[offset : offset + len(shown)] == shown, index


@pytest.mark.parametrize(
    ("text", "offsets"),
    [("é你A", [0, 0, 1, 1, 1, 2]), ("🙂é", [0, 0, 0, 0, 1, 1]), ("AA", [0, 1])],
)
def test_bytes_of_a_character_stand_where_it_does(tokenizer: Tokenizer, text: str, offsets: list[int]) -> None:
    places = TextOffsets(tokenizer)
    assert [places.push(token_id) for token_id in byte_ids(tokenizer, text.encode())] == offsets
    assert places.end == len(text)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁\ufffd")))
def test_text_arrives_whole_and_never_in_half_characters(any_tokenizer: Tokenizer, text: str) -> None:
    ids = any_tokenizer.encode(text)
    whole = any_tokenizer.decode(ids)
    parts = parts_of(any_tokenizer, ids)
    assert "".join(parts) == whole
    if "\ufffd" not in whole:  # one decoder of the list has no notion of bytes at all
        assert all("\ufffd" not in part for part in parts)


@given(
    tokens=st.lists(st.sampled_from(["▁", "▁we", "e", "<eos>", "<0x20>", "<0xF0>", "<0x9F>"]), max_size=8),
    skip_special_tokens=st.booleans(),
)
def test_spaces_that_open_a_text_add_up(any_tokenizer: Tokenizer, tokens: list[str], skip_special_tokens: bool) -> None:
    found = [any_tokenizer.token_to_id(token) for token in tokens]
    ids = [token_id for token_id in found if token_id is not None]
    parts = parts_of(any_tokenizer, ids, skip_special_tokens=skip_special_tokens)
    assert "".join(parts) == whole(any_tokenizer, ids, skip_special_tokens=skip_special_tokens)


def test_a_joined_emoji_arrives_character_by_character(tokenizer: Tokenizer) -> None:
    text = "a 👩‍👩‍👧‍👦 b"
    assert "".join(parts_of(tokenizer, tokenizer.encode(text))) == text


def test_ordinary_tokens_are_not_held_back(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("The weather in Paris is clear")
    parts = parts_of(tokenizer, ids)
    assert all(parts[:-1])
    assert parts[-1] == ""


def test_a_run_of_bytes_appears_with_the_token_that_ends_it(tokenizer: Tokenizer) -> None:
    space_id = tokenizer.token_to_id("▁")
    assert space_id is not None
    ids = [*byte_ids(tokenizer, "𒀀".encode()), space_id]
    assert parts_of(tokenizer, ids) == ["", "", "", "", "𒀀 ", ""]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("𒀀".encode()[:1], ""),
        ("𒀀".encode()[:2], ""),
        ("𒀀".encode()[:3], ""),
        ("é".encode() + "𒀀".encode()[:3], "é"),
        (b"\xff" + "é".encode()[:1], "\ufffd"),
        (b"\x9f", "\ufffd"),
    ],
)
def test_half_a_character_at_the_end_is_left_out(tokenizer: Tokenizer, data: bytes, shown: str) -> None:
    ids = [*tokenizer.encode("wind"), *byte_ids(tokenizer, data)]
    assert "".join(parts_of(tokenizer, ids)) == "wind" + shown


def test_special_tokens_do_not_break_a_run_they_are_skipped_from(tokenizer: Tokenizer) -> None:
    first, second = byte_ids(tokenizer, "é".encode())
    eos_id = tokenizer.eos_id
    assert eos_id is not None
    assert "".join(parts_of(tokenizer, [first, eos_id, second])) == "é"
    shown = parts_of(tokenizer, [first, eos_id, second], skip_special_tokens=False)
    assert "".join(shown) == "\ufffd<eos>\ufffd"


class CountingTokenizer(Tokenizer):
    """Counts the token ids it is asked to decode."""

    num_decoded = 0

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        self.num_decoded += len(token_ids)
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    def decode_continuation(self, token_ids: Sequence[int]) -> str:
        self.num_decoded += len(token_ids)
        return super().decode_continuation(token_ids)


@pytest.mark.parametrize("text", ["𒀀" * 500, "𒀀 " * 500, "The weather in Paris. " * 100])
def test_no_token_is_decoded_more_than_twice(text: str) -> None:
    tokenizer = CountingTokenizer(build_gemma_like())
    ids = tokenizer.encode(text)
    tokenizer.num_decoded = 0
    assert "".join(parts_of(tokenizer, ids)) == text
    assert tokenizer.num_decoded <= 2 * len(ids)
