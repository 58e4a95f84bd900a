import itertools
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from facet.kv_cache.prefix_chain import TOKENS_PER_LINK, PrefixChain
from tests.media_spans import contents, prompt_of, segments

tokens = st.lists(st.integers(0, 2**18 - 1), max_size=5 * TOKENS_PER_LINK)


@given(tokens, tokens, st.integers(0, 5 * TOKENS_PER_LINK))
def test_digests_agree_as_far_as_the_tokens_do(one: list[int], other: list[int], num_shared: int) -> None:
    other = one[:num_shared] + other
    agreeing = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    chains = PrefixChain(one), PrefixChain(other)
    same = [a == b for a, b in zip(chains[0].digests, chains[1].digests, strict=False)]
    assert same == [(link + 1) * TOKENS_PER_LINK <= agreeing for link in range(len(same))]


@given(st.data())
def test_digests_agree_as_far_as_the_contents_do(data: st.DataObject) -> None:
    """Equal placeholders with other content part ways; the same content at the same place does not."""
    shared, *own = (data.draw(segments()) for _ in range(3))
    prompts = [prompt_of(shared + each) for each in own]
    one, other = (contents(*prompt) for prompt in prompts)
    agreeing = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    chains = [PrefixChain(token_ids, media=spans) for token_ids, spans in prompts]
    same = [a == b for a, b in zip(chains[0].digests, chains[1].digests, strict=False)]
    assert same == [(link + 1) * TOKENS_PER_LINK <= agreeing for link in range(len(same))]
    for position in range(min(len(one), len(other)) + 1):
        start = position - position % TOKENS_PER_LINK
        is_same = chains[0].remainder(position) == chains[1].remainder(position)
        assert is_same == (one[start:position] == other[start:position])


@given(segments(), st.lists(st.integers(0, 30), max_size=40))
def test_a_chain_with_media_grows_like_one_without(parts: list[tuple[int, Any]], outputs: list[int]) -> None:
    token_ids, spans = prompt_of(parts)
    grown = PrefixChain(token_ids, media=spans)
    grown.extend(outputs)
    assert grown.digests == PrefixChain([*token_ids, *outputs], media=spans).digests
    if not spans:
        assert grown.digests == PrefixChain([*token_ids, *outputs]).digests


@given(tokens, st.lists(st.integers(0, 5 * TOKENS_PER_LINK), max_size=4))
def test_a_chain_that_grew_is_the_chain_of_all_its_tokens(token_ids: list[int], cuts: list[int]) -> None:
    grown = PrefixChain([])
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    for start, stop in itertools.pairwise(bounds):
        grown.extend(token_ids[start:stop])
    whole = PrefixChain(token_ids)
    assert (grown.digests, grown.token_ids) == (whole.digests, whole.token_ids)
    assert len(whole.digests) == len(token_ids) // TOKENS_PER_LINK


def test_salts_keep_equal_prompts_apart() -> None:
    prompt = range(TOKENS_PER_LINK)
    digests = {PrefixChain(prompt, salt=salt).digests[0] for salt in (None, "one", "other")}
    assert len(digests) == 3


def test_the_remainder_is_what_no_digest_covers() -> None:
    chain = PrefixChain(range(40))
    assert array("i", chain.remainder(35)).tolist() == [32, 33, 34]
    assert chain.remainder(32) == b""
