"""`--speculative-config`: vLLM's fields, and one line for everything else."""

from typing import Any

import pytest

from facet.drafts.config import ModelDrafts, NgramDrafts, SuffixDrafts, most_drafts, read_draft_config
from facet.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({"method": "none"}, None),
        ({"method": "suffix"}, SuffixDrafts(num_drafts=24, max_match=24, max_factor=1.0, min_share=0.1)),
        (
            {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_spec_factor": 2},
            SuffixDrafts(num_drafts=8, max_match=24, max_factor=2.0, min_share=0.1),
        ),
        ({"method": "ngram", "num_speculative_tokens": 4}, NgramDrafts(num_drafts=4, min_match=5, max_match=5)),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
            NgramDrafts(num_drafts=4, min_match=3, max_match=3),
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1},
            NgramDrafts(num_drafts=4, min_match=1, max_match=3),
        ),
        ({"model": "x"}, ModelDrafts(model="x", num_drafts=4)),
        (
            {"model": "x", "method": "suffix", "num_speculative_tokens": 2, "suffix_decoding_max_tree_depth": 9},
            ModelDrafts(
                model="x",
                num_drafts=2,
                from_text=SuffixDrafts(num_drafts=9, max_match=9, max_factor=1.0, min_share=0.1),
            ),
        ),
    ],
)
def test_what_is_meant(given: dict[str, Any] | None, expected: object) -> None:
    assert read_draft_config(given) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "medusa"}, "'medusa', but there are suffix, ngram and none"),
        ({}, "names no method, but there are suffix, ngram and none"),
        ({"num_speculative_tokens": 3}, "names no method, but"),
        ({"method": "ngram"}, "needs num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"method": "suffix", "num_speculative_tokens": 1000}, "from 1 to 128"),
        ({"method": "suffix", "num_speculative_tokens": True}, "is True"),
        ({"method": "suffix", "prompt_lookup_min": 2}, "prompt_lookup_min is not a field of the method suffix"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "from 0 to 1"),
        ({"model": "x", "suffix_decoding_min_token_prob": 0.5}, "is not a field of the method mtp"),
        (
            {"model": "x", "method": "suffix", "synthetic_acceptance_rates": [0.5]},
            "is not a field of the method suffix",
        ),
        ({"model": "x", "method": "ngram"}, "model is not a field of the method ngram"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": 10}, "own tokens"),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4, "prompt_lookup_max": 3},
            "prompt_lookup_min is 4, more than",
        ),
    ],
)
def test_bad_input(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        read_draft_config(given)
    assert "\n" not in str(error.value)


def test_a_step_has_room_for_the_longer_of_two_guesses() -> None:
    both = read_draft_config({"model": "x", "method": "suffix"})
    assert both is not None
    assert most_drafts(both) == 24
    assert most_drafts(ModelDrafts(model="x", num_drafts=4)) == 4
