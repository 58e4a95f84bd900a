"""The Triton kernels against the reference: in Triton's interpreter on small vocabularies, on a GPU on real ones."""

import math

import pytest
import torch
from torch import Tensor

from facet.kernels.token_choice import ChoiceSettings, cases, reference
from tests.sampling.builders import chi_square, chi_square_limit

pytest.importorskip("triton")
from facet.kernels.token_choice import triton as fast

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
VOCABULARIES = [40, 5003, *(cases.VOCABULARIES if ON_GPU else ())]  # within a slice, beyond, real


def check(logits: Tensor, settings: ChoiceSettings, keys: Tensor | None, raw_max: Tensor | None = None) -> list[int]:
    before = logits.clone()
    expected = reference.choose_tokens(logits, settings, keys, raw_max)
    got = fast.choose_tokens(logits, settings, keys, raw_max)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    assert got.is_finite.tolist() == expected.is_finite.tolist()
    assert got.has_choice.tolist() == expected.has_choice.tolist()
    return got.token_ids.tolist()


@pytest.mark.parametrize(
    ("kind", "vocab_size"),
    [
        ("tied", 40),
        *((kind, size) for kind in cases.INPUTS for size in VOCABULARIES[1:] if ON_GPU or kind != "flat"),
    ],
)
def test_rows_of_all_kinds(kind: str, vocab_size: int) -> None:
    num_rows = len(cases.MIXED)
    logits = cases.INPUTS[kind](num_rows, vocab_size, DEVICE)
    settings = cases.settings(cases.MIXED, vocab_size, DEVICE)
    for seed in range(8 if ON_GPU else 1):
        check(logits, settings, cases.noise_keys(num_rows, DEVICE, seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab_size", [1, 7, 2048, *VOCABULARIES])
def test_greedy_is_the_first_of_the_best(vocab_size: int, dtype: torch.dtype) -> None:
    logits = torch.cat([make(2, vocab_size, DEVICE) for make in cases.INPUTS.values()]).to(dtype)
    logits = torch.cat(
        [logits, torch.tensor([-0.0, 0.0], device=DEVICE).repeat(vocab_size)[None, :vocab_size].to(dtype)]
    )
    rows = [cases.GREEDY] * len(logits)
    got = check(logits, cases.settings(rows, vocab_size, DEVICE), None)
    assert got == logits.float().argmax(-1).tolist()


@pytest.mark.parametrize("vocab_size", VOCABULARIES[1:])
def test_half_precision_logits(vocab_size: int) -> None:
    logits = cases.peaked_logits(3, vocab_size, DEVICE).bfloat16()
    settings = cases.settings(cases.MIXED[1:4], vocab_size, DEVICE)
    check(logits, settings, cases.noise_keys(3, DEVICE))


def test_top_k_up_to_the_vocabulary() -> None:
    vocab_size = 100
    rows = [(1.0, top_k, top_p, 0.0) for top_k in (2, 63, 99, 100) for top_p in (1.0, 0.7)]
    logits = cases.tied_logits(len(rows), vocab_size, DEVICE)
    check(logits, cases.settings(rows, vocab_size, DEVICE), cases.noise_keys(len(rows), DEVICE))


@pytest.mark.parametrize("kind", ["flat", "tied"])
def test_a_nucleus_too_wide_to_be_held(kind: str) -> None:
    vocab_size = 8400
    rows = [(1.0, 0, 0.98, 0.0), (3.0, 0, 0.6, 0.2)]
    logits = cases.INPUTS[kind](len(rows), vocab_size, DEVICE)
    for seed in range(20 if ON_GPU else 1):
        check(logits, cases.settings(rows, vocab_size, DEVICE), cases.noise_keys(len(rows), DEVICE, seed))


def test_a_cut_keeps_the_first_of_equals() -> None:
    """All logits equal: top_p 0.25 keeps the first quarter, the token that reaches it included."""
    for vocab_size, kept in ((40, 10), (8400, 2100)):  # held, and not
        rows = [(1.0, 0, 0.25, 0.0)]
        settings = cases.settings(rows, vocab_size, DEVICE)
        logits = torch.full((1, vocab_size), 3.0, device=DEVICE)
        for seed in range(40 if ON_GPU else 1):
            (token_id,) = check(logits, settings, cases.noise_keys(1, DEVICE, seed))
            assert token_id < kept


@pytest.mark.filterwarnings("ignore:overflow")  # what a broken row's numbers come to does not matter
def test_broken_rows_are_flagged_and_give_no_token() -> None:
    vocab_size = 2500
    rows = cases.MIXED[:6]
    num_rows = len(rows)
    settings = cases.settings(rows, vocab_size, DEVICE)
    for broken, place in ((math.nan, 0), (math.inf, 2499), (-math.inf, slice(None))):
        logits = cases.peaked_logits(num_rows, vocab_size, DEVICE)
        logits[:, place] = broken
        logits[2] = 0.0  # one sound row among them
        got = fast.choose_tokens(logits, settings, cases.noise_keys(num_rows, DEVICE))
        sound = [row == 2 for row in range(num_rows)]
        assert got.has_choice.tolist() == got.is_finite.tolist() == sound
        assert [token_id > 0 for token_id in got.token_ids.tolist()] == sound


def test_a_mask_does_not_hide_what_the_model_gave() -> None:
    rows = [cases.GREEDY, (1.0, 5, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (1.0, 0, 0.5, 0.0), cases.GREEDY]
    logits = cases.masked_logits(len(rows), 2500, DEVICE)
    logits[4] = -math.inf
    raw_max = torch.tensor([math.nan, 3.0, math.inf, 3.0, 3.0], device=DEVICE)
    check(logits, cases.settings(rows, 2500, DEVICE), cases.noise_keys(len(rows), DEVICE), raw_max)
    got = fast.choose_tokens(logits, cases.settings(rows, 2500, DEVICE), cases.noise_keys(5, DEVICE), raw_max)
    assert got.is_finite.tolist() == [False, True, False, True, True]
    assert got.has_choice.tolist() == [True, True, True, True, False]
    assert [token_id != 0 for token_id in got.token_ids.tolist()] == [False, True, False, True, False]


def test_rows_may_lie_apart_in_memory() -> None:
    padded = cases.peaked_logits(4, 3000, DEVICE)
    settings = cases.settings(cases.MIXED[1:5], 2100, DEVICE)
    check(padded[:, :2100], settings, cases.noise_keys(4, DEVICE))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: thousands of rows are slow in the interpreter")
@pytest.mark.parametrize(("row", "kept"), [((1.0, 5, 1.0, 0.0), 5), ((1.0, 0, 1.0, 0.0), 7), ((1.0, 0, 0.7, 0.0), 3)])
def test_frequencies_follow_the_probabilities(row: cases.Row, kept: int) -> None:
    shares = torch.tensor([0.35, 0.2, 0.15, 0.1, 0.1, 0.06, 0.04])
    num_rows, vocab_size = 40_000, 5003
    logits = torch.full((1, vocab_size), -math.inf)
    logits[0, 4000 : 4000 + len(shares)] = shares.log()
    logits = logits.to(DEVICE).expand(num_rows, vocab_size)
    settings = cases.settings([row] * num_rows, vocab_size, DEVICE)
    got = fast.choose_tokens(logits, settings, cases.noise_keys(num_rows, DEVICE)).token_ids - 4000
    counts = torch.bincount(got.cpu(), minlength=len(shares)).tolist()
    assert sum(counts[kept:]) == 0
    expected = shares[:kept] / shares[:kept].sum() * num_rows
    assert chi_square(counts[:kept], expected.tolist()) < chi_square_limit(kept - 1)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_a_graph_can_hold_it() -> None:
    num_rows, vocab_size = len(cases.MIXED), cases.VOCABULARIES[0]
    settings = cases.settings(cases.MIXED, vocab_size, DEVICE)
    logits, keys = cases.flat_logits(num_rows, vocab_size, DEVICE), cases.noise_keys(num_rows, DEVICE)
    fast.choose_tokens(logits, settings, keys)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = fast.choose_tokens(logits, settings, keys)
    for seed in range(3):
        logits.copy_(cases.peaked_logits(num_rows, vocab_size, DEVICE, seed))
        graph.replay()
        assert torch.equal(got.token_ids, reference.choose_tokens(logits, settings, keys).token_ids)
