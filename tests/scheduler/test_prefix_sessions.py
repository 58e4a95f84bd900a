"""Many chats, one after the other and round again, with less and less memory: hits shrink, they do not collapse.

A loop over more sessions than fit is the worst case for a cache that evicts what was used longest ago: each session is
evicted just before its turn comes.
"""

import random

import pytest

from facet.kv_cache.accountant import peak_blocks
from tests.kv_cache.layouts import make_layout
from tests.scheduler.requests import VOCAB_SIZE, make_engine, make_request

NUM_SESSIONS, NUM_TURNS, NUM_OUTPUTS = 24, 5, 12
MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS = 128, 2
LAYOUT = make_layout((64, 4), (None, 40))
SHARES_OF_WORKING_SET = (0.25, 0.5, 1.0, 2.0)


def run_sessions(num_blocks: int, *, num_system_tokens: int, edits_replies: bool = False) -> list[float]:
    """The share of prompt tokens found in the cache, per turn. Edited replies come back without their first half."""
    rng = random.Random(0)
    engine = make_engine(
        LAYOUT,
        num_blocks=num_blocks,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        max_model_len=1024,
        overlapped=True,
        checks_integrity=False,
    )
    system = rng.choices(range(VOCAB_SIZE), k=num_system_tokens)
    chats = [[*system] for _ in range(NUM_SESSIONS)]
    hit_rates = []
    for turn in range(NUM_TURNS):
        num_hit = num_asked = 0
        for start in range(0, NUM_SESSIONS, MAX_NUM_SEQS):
            sessions = range(start, min(start + MAX_NUM_SEQS, NUM_SESSIONS))
            for session in sessions:
                chats[session] += rng.choices(range(VOCAB_SIZE), k=rng.randint(80, 200) if turn == 0 else 30)
                request_id = f"{session} {turn}"
                engine.submit(make_request(request_id, chats[session], max_tokens=NUM_OUTPUTS, ignore_eos=True))
            engine.run()
            for session in sessions:
                request_id = f"{session} {turn}"
                num_asked += len(chats[session])
                num_hit += engine.num_cached_tokens[request_id]
                chats[session] += engine.output_token_ids[request_id][NUM_OUTPUTS // 2 if edits_replies else 0 :]
        hit_rates.append(num_hit / num_asked)
    return hit_rates


def working_set(num_system_tokens: int) -> int:
    """What it takes to continue every session from where it stands after its last turn."""
    num_tokens = num_system_tokens + 140 + (NUM_TURNS - 1) * 30 + NUM_TURNS * NUM_OUTPUTS
    return NUM_SESSIONS * sum(peak_blocks(LAYOUT, num_tokens=num_tokens, num_in_flight=1))


@pytest.mark.parametrize(("num_system_tokens", "least"), [(0, (0.05, 0.2, 0.65, 0.8)), (100, (0.25, 0.4, 0.75, 0.85))])
def test_hit_rate_falls_gradually(num_system_tokens: int, least: tuple[float, ...]) -> None:
    print(f"\nsystem prompt of {num_system_tokens} tokens; hit rate by turn, and of all turns but the first")
    rates = []
    for share in SHARES_OF_WORKING_SET:
        num_blocks = int(share * working_set(num_system_tokens))
        by_turn = run_sessions(num_blocks, num_system_tokens=num_system_tokens)
        rates.append(sum(by_turn[1:]) / (NUM_TURNS - 1))
        print(f"{share:>6.0%} of working set   {'  '.join(f'{rate:5.1%}' for rate in by_turn)}   {rates[-1]:5.1%}")
    assert rates == sorted(rates)
    assert all(rate > bound for rate, bound in zip(rates, least, strict=True))


def test_replies_that_come_back_edited_still_find_their_prompts() -> None:
    """Then the checkpoint at the end of the prompt is the one that counts, not the one at the end of the reply."""
    by_turn = run_sessions(2 * working_set(0), num_system_tokens=0, edits_replies=True)
    assert sum(by_turn[1:]) / (NUM_TURNS - 1) > 0.7
