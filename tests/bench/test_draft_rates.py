"""What a server says of its drafts, as rows of a result."""

from facet.bench.draft_rates import counted_between, parse_draft_counts, rates_of
from facet.draft_counts import NO_DRAFTS, DraftCounts

METRICS = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 8.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 11.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 1.0
"""


def test_counters_of_all_engines_are_added() -> None:
    assert parse_draft_counts(METRICS) == DraftCounts(
        num_runs=9, num_drafts=20, num_accepted=11, num_accepted_by_place=(7, 4)
    )
    assert parse_draft_counts('{"object": "list"}') == NO_DRAFTS


def test_rates_are_of_the_run_alone() -> None:
    before = DraftCounts(num_runs=5, num_drafts=10, num_accepted=1, num_accepted_by_place=(1,))
    drafts = counted_between(before, parse_draft_counts(METRICS))
    assert dict(rates_of(drafts)) == {
        "Acceptance rate (%):": 100.0,
        "Acceptance length:": 3.5,
        "Drafts:": 4,
        "Draft tokens:": 10,
        "Accepted tokens:": 10,
        "  Position 0 (%):": 150.0,
        "  Position 1 (%):": 100.0,
    }
    assert not list(rates_of(NO_DRAFTS))
