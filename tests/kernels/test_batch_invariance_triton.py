"""The Triton kernels that promise it, in the interpreter: right, and a row's bits depend neither on the rows beside it,
nor on its place among them, nor on where a run of rows was cut. On a GPU the same, at the shapes of real models."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.add_norm import triton as add_norm
from facet.kernels.geglu import cases as geglu_cases
from facet.kernels.geglu import reference as plain_activations
from facet.kernels.geglu.triton_sparse import sparse_geglu
from facet.kernels.linear import cases as linear_cases
from facet.kernels.linear import chain
from facet.kernels.linear import reference as plain_products
from facet.kernels.log_sum_exp import cases as log_sum_cases
from facet.kernels.log_sum_exp import reference as plain_log_sums
from facet.kernels.log_sum_exp.triton import log_sum_exp
from facet.kernels.mean_square import cases as mean_square_cases
from facet.kernels.mean_square import reference as plain_mean_squares
from facet.kernels.mean_square.triton import mean_square
from facet.kernels.moe import cases as moe_cases
from facet.kernels.moe import reference as plain_experts
from facet.kernels.moe import triton as experts
from facet.kernels.moe.config import invariant_tiles
from facet.kernels.paged_attention import cases as attention_cases
from facet.kernels.paged_attention.decode import fixed, in_turn
from facet.kernels.paged_attention.gpu import plan_invariant_on_gpu
from facet.kernels.paged_attention.reference import plan_reference
from facet.kernels.rms_norm import triton as norms
from facet.kernels.rms_norm.triton import RowTile, rms_norm, router_norms, tile_of_few_rows
from facet.kernels.rounded_rows import FP8_CODES, INT8_CODES

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Products of bfloat16 numbers are wrong in the interpreter.
DTYPES = (torch.bfloat16,) if ON_GPU else (torch.float32, torch.float16)

PRODUCTS = (
    *linear_cases.ODD,
    linear_cases.Shape("deep", 72, 300),
    linear_cases.Shape("gate and up", 40, 100, "geglu_linear"),
    linear_cases.Shape("gate", 24, 40, "gated_input_linear"),
)
if ON_GPU:
    PRODUCTS += (*linear_cases.E4B, linear_cases.LARGE[1], linear_cases.LARGE[2])
NUM_ROWS = 300 if ON_GPU else 66
# Some rows, in some order: alone, some, more than a tile.
CHOICES = ([7], [65, 20, 3], list(range(3, NUM_ROWS)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", PRODUCTS, ids=lambda shape: shape.name)
def test_products(shape: linear_cases.Shape, dtype: torch.dtype) -> None:
    x, weight = shape.inputs(NUM_ROWS, dtype, DEVICE)
    given = torch.randn(NUM_ROWS, shape.num_out, device=DEVICE).to(dtype)

    def run(module: Any, rows: list[int] | slice) -> Tensor:
        if shape.operation == "gated_input_linear":
            return module.gated_input_linear(x[rows], weight, given[rows])
        return getattr(module, shape.operation)(x[rows], weight)

    together = run(chain, slice(None))
    linear_cases.TOLERANCES[dtype].check(together, run(plain_products, slice(None)))
    assert run(chain, slice(0, 0)).shape == (0, together.shape[1])
    if dtype == torch.float16:
        return  # the interpreter has no tensor cores, whose bits are the same in all tiles
    for rows in CHOICES:
        assert torch.equal(run(chain, rows), together[rows])
    # Rows that begin where memory is not aligned.
    assert torch.equal(run(chain, slice(1, None)), together[1:])


@pytest.mark.parametrize("least_agreeing", [None, 256, 300])
def test_library_serves_where_it_sums_in_one_chain(least_agreeing: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried from many rows to few, and used down to where it first differs."""
    tried = (400, 300, 256, 200, 128)
    _, weight = linear_cases.ODD[1].inputs(1, torch.float16, DEVICE)
    monkeypatch.setattr(chain, "_least_rows", {})
    monkeypatch.setattr(chain, "_TRIED_ROWS", tried)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    agrees = {rows for rows in tried if least_agreeing is not None and rows >= least_agreeing} | {128}
    monkeypatch.setattr(chain, "_is_one_chain", lambda x, weight: len(x) in agrees)
    assert chain.least_library_rows(weight) == least_agreeing
    assert chain.least_library_rows(weight) == least_agreeing


def test_library_does_not_serve_where_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is slow at many rows, where nothing else is fast, does not count."""
    _, weight = linear_cases.ODD[1].inputs(1, torch.float16, DEVICE)
    monkeypatch.setattr(chain, "_least_rows", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(chain, "_is_one_chain", lambda x, weight: True)
    monkeypatch.setattr(chain, "_is_slow", lambda x, weight: len(x) < 32 or len(x) > 64)
    assert chain.least_library_rows(weight) == 32


@pytest.mark.parametrize("width", [48, 1100, 2560])
def test_norms(width: int) -> None:
    """On a GPU, of more rows than are worked on as few."""
    tile = tile_of_few_rows(width)
    dtype, num_rows = DTYPES[0], 600 if ON_GPU else 6
    generator = torch.Generator(DEVICE).manual_seed(0)
    x, y = torch.randn(2, num_rows, width, generator=generator, device=DEVICE).to(dtype)
    weight = torch.rand(width, generator=generator, device=DEVICE)
    normed = rms_norm(x, weight, 1e-6, tile)
    scaled, _ = router_norms(x, weight, 0.1, weight, 1e-6, tile)
    added, then = add_norm.add_norm(x, y, weight, weight, 1e-6, tile=tile)
    summed = add_norm.sum_of_norms(x, weight, y, weight, 1e-6, tile)
    assert then is not None
    for rows in ([4], [num_rows - 1, 0, 3]):
        one, two = add_norm.add_norm(x[rows], y[rows], weight, weight, 1e-6, tile=tile)
        assert two is not None
        assert torch.equal(one, added[rows])
        assert torch.equal(two, then[rows])
        assert torch.equal(rms_norm(x[rows], weight, 1e-6, tile), normed[rows])
        assert torch.equal(router_norms(x[rows], weight, 0.1, None, 1e-6, tile)[0], scaled[rows])
        assert torch.equal(add_norm.sum_of_norms(x[rows], weight, y[rows], weight, 1e-6, tile), summed[rows])


in_turn_only = pytest.mark.skipif(
    ON_GPU and torch.cuda.get_device_capability() >= (10, 0), reason="no rows are taken in turn there"
)


@in_turn_only
@pytest.mark.parametrize("num_rows", [2048, 2051, 8192] if ON_GPU else [5, 29])
@pytest.mark.parametrize("width", [2560, 2816, 5376] if ON_GPU else [1040])
def test_norms_of_rows_in_turn(width: int, num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that go from row to row leave the bits of programs that have one; in the interpreter, twelve of them."""
    if not ON_GPU:
        monkeypatch.setattr(norms, "_LEAST_IN_TURN", {2048: 5})
    generator = torch.Generator(DEVICE).manual_seed(num_rows)
    x, y = torch.randn(2, num_rows, width, generator=generator, device=DEVICE).to(DTYPES[-1])
    weight, other = torch.rand(2, width, generator=generator, device=DEVICE) + 0.5
    scale = torch.tensor([0.71875], dtype=x.dtype, device=DEVICE)
    few, in_turn = tile_of_few_rows(width), norms.tile_of_any_rows(x)
    assert in_turn.num_programs is not None
    assert in_turn.grid(num_rows) == (min(num_rows, in_turn.num_programs),)
    assert norms.tile_of_any_rows(x[:4]) == norms.tile_of_any_rows(x.float()) == few
    with monkeypatch.context() as patched:
        patched.setattr(norms, "_sums_alike", lambda device: False)
        assert norms.tile_of_any_rows(x) == few

    runs: list[Callable[[RowTile], Any]] = [
        lambda tile: rms_norm(x, weight, 1e-6, tile),
        lambda tile: rms_norm(x, None, 1e-6, tile),
        lambda tile: router_norms(x, weight, 0.1, other, 1e-6, tile),
        lambda tile: router_norms(x, weight, 0.1, None, 1e-6, tile),
        lambda tile: add_norm.sum_of_norms(x, weight, y, other, 1e-6, tile),
        lambda tile: add_norm.add_norm(x, y, weight, other, 1e-6, scale, tile),
        lambda tile: add_norm.add_norm(x, y, weight, None, 1e-6, None, tile),
        lambda tile: norms.rounded_rms_norm(x, weight, 1e-6, FP8_CODES, tile),
        lambda tile: add_norm.rounded_add_norm(x, y, weight, other, 1e-6, scale, INT8_CODES, tile),
    ]
    for run in runs:
        for got, expected in zip(tensors_of(run(in_turn)), tensors_of(run(few)), strict=True):
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@in_turn_only
@pytest.mark.parametrize(
    ("width", "num_rows", "is_in_turn"),
    [
        (1040, 8192, False),
        (2560, 2047, False),
        (2560, 2048, True),
        (2568, 2048, False),
        (3840, 8192, False),
        (5376, 256, False),
        (5376, 257, True),
        (8208, 8192, False),
    ],
)
def test_which_rows_are_taken_in_turn(width: int, num_rows: int, is_in_turn: bool) -> None:
    """Many long ones that begin where 16 elements can be loaded, and leave room."""
    x = torch.empty(num_rows, width, dtype=torch.float16, device=DEVICE)
    assert (norms.tile_of_any_rows(x).num_programs is not None) == is_in_turn


def tensors_of(result: Any) -> list[Tensor]:
    """Of a result or several, one inside another."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for part in result if isinstance(part, Tensor | tuple) for tensor in tensors_of(part)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 2112])
def test_sparse_activation(width: int, dtype: torch.dtype) -> None:
    gate_up = geglu_cases.gate_up(width, dtype, DEVICE)
    tolerance = geglu_cases.FLOAT32 if dtype == torch.float32 else geglu_cases.SPARSE_BFLOAT16
    for cutoff in (0.5, *geglu_cases.SPARSITIES):
        together = sparse_geglu(gate_up, cutoff)
        tolerance.check(together, plain_activations.sparse_geglu(gate_up, cutoff))
        assert torch.equal(sparse_geglu(gate_up[3:4], cutoff), together[3:4])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", mean_square_cases.WIDTHS)
def test_mean_squares(width: int, dtype: torch.dtype) -> None:
    rows = mean_square_cases.rows(width, dtype, DEVICE)
    together = mean_square(rows)
    mean_square_cases.TOLERANCES[dtype].check(together, plain_mean_squares.mean_square(rows))
    assert torch.equal(mean_square(rows[5:6]), together[5:6])
    assert torch.equal(mean_square(rows[None, 30:]), together[None, 30:])


@pytest.mark.parametrize("vocab_size", log_sum_cases.LARGE_VOCAB_SIZES if ON_GPU else log_sum_cases.VOCAB_SIZES)
def test_log_sums(vocab_size: int) -> None:
    logits = log_sum_cases.logits(vocab_size, DEVICE)
    together = log_sum_exp(logits)
    log_sum_cases.FLOAT32.check(together, plain_log_sums.log_sum_exp(logits))
    log_sum_cases.FLOAT32.check(together, logits.double().logsumexp(-1, keepdim=True).float())
    for row in range(len(logits)):
        assert torch.equal(log_sum_exp(logits[row : row + 1]), together[row : row + 1])
    logits[0, 3] = float("nan")
    assert log_sum_exp(logits)[:, 0].isnan().tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_experts(dtype: torch.dtype) -> None:
    case = moe_cases.Case(num_rows=21, hidden=64, num_experts=4, num_chosen=3, width=24)
    inputs = case.inputs(dtype, DEVICE)

    def run(rows: list[int]) -> Tensor:
        weights, chosen = experts.route(inputs.router_logits[rows], case.num_chosen, inputs.expert_scale)
        tiles = invariant_tiles(chosen.numel(), case.num_experts, dtype.itemsize)
        return experts.run_experts(inputs.x[rows], weights, chosen, inputs.gate_up, inputs.down, tiles)

    together = run(list(range(21)))
    routed = plain_experts.route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    tolerance = moe_cases.FLOAT32 if dtype == torch.float32 else moe_cases.BFLOAT16
    tolerance.check(together, plain_experts.run_experts(inputs.x, *routed, inputs.gate_up, inputs.down))
    for rows in ([7], [0, 20], list(range(18, 3, -1))):
        assert torch.equal(run(rows), together[rows])


# Least keys of a share of a decoded row, without a window and with one.
SHARE, WINDOW_SHARE = 128, 64
ATTENTION = attention_cases.Case(
    name="three shares",
    num_heads=2,
    num_kv_heads=1,
    head_dim=512 if ON_GPU else 32,
    window=None,
    tokens_per_block=24,
    sequences=((12, 3 * SHARE + 6), (2, 30)),
)
# Rows of either sequence that are prefilled: tokens before the last of its prompt. An answer follows, as that of a
# request that was put back.
NUM_PREFILLED = (7, 1)
ATTENTION_CASES = (
    ATTENTION,
    replace(ATTENTION, name="window", window=20, head_dim=256 if ON_GPU else 32),
    replace(
        ATTENTION, name="window of shares", window=3 * WINDOW_SHARE + 7, num_kv_heads=2, head_dim=128 if ON_GPU else 32
    ),
    replace(ATTENTION, name="three heads to one", num_heads=3, num_kv_heads=1),
    replace(ATTENTION, name="shared", num_rotated_pairs=64 if ON_GPU else 8),
)


@pytest.mark.parametrize(
    ("case", "dtype"),
    # A type for each case: what is taken in which order is the same in all.
    [pytest.param(case, DTYPES[index % len(DTYPES)], id=case.name) for index, case in enumerate(ATTENTION_CASES)],
)
def test_attention(case: attention_cases.Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt and an answer in chunks cut anywhere, in company and without, by few programs and by many."""
    inputs = case.inputs(dtype, DEVICE)
    num_rows = len(inputs.queries)

    def attend(first: int, last: int, *, limit: int = 2**30, longest: int = 0) -> Tensor:
        plan = plan_invariant_on_gpu(
            _some_rows(case, inputs, first, last, longest),
            inputs.block_table,
            case.heads,
            window=case.window,
            tokens_per_block=case.tokens_per_block,
            partials_limit=limit,
        )
        assert len(plan.decodes) > 1 or limit > 1
        out = torch.full_like(inputs.queries[first:last], torch.nan)
        plan.run(inputs.queries[first:last], inputs.cache, scale=case.scale, key_recipe=inputs.key_recipe, out=out)
        return out

    together = attend(0, num_rows)
    case.tolerance(dtype).check(together, case.attend(inputs, plan_reference))
    for first, last in pairwise((0, 5, 8, 9, num_rows)):
        assert torch.equal(attend(first, last), together[first:last])
    # Row by row, and as a captured graph does it: planned for contexts that nobody has.
    assert torch.equal(attend(0, num_rows, limit=1), together)
    assert torch.equal(attend(9, 10, longest=1000), together[9:10])
    monkeypatch.setattr(fixed, "_LEAST_PROGRAMS", 1)
    monkeypatch.setattr(fixed, "_LEAST_PROGRAMS_IN_TURN", 1)
    for fitting in (0, 2):
        monkeypatch.setattr(fixed, "fitting_shares", lambda *_, fitting=fitting: fitting)
        assert torch.equal(attend(0, num_rows), together)
    monkeypatch.setattr(in_turn, "_SHARES_AT_ONCE", 2)
    assert torch.equal(attend(0, num_rows), together)


@pytest.mark.parametrize(("window", "group", "num_kv_heads"), [(None, 3, 1), (13, 4, 2), (70, 1, 2), (300, 2, 1)])
def test_rows_of_drafts(window: int | None, group: int, num_kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In groups and without, as rows of one sequence beside prompts and as rows of their own."""
    monkeypatch.setattr(fixed, "_MOST_SHARES", 8)
    monkeypatch.setattr(fixed, "_LEAST_KEYS_IN_TURN", 32)
    monkeypatch.setattr(fixed, "_LEAST_PROGRAMS_IN_TURN", 1)
    case = attention_cases.Case(
        name="rows of drafts",
        num_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        window=window,
        tokens_per_block=24,
        # Runs within a tile and beyond, from the first token on, and across lengths at which shares grow.
        sequences=((3, 40), (1, 17), (9, 70), (6, 6), (5, 258), (2, 330)),
    )
    inputs = case.inputs(torch.float16, DEVICE)
    num_rows = len(inputs.queries)
    together = replace(inputs.rows, host_prompt_lens=(0,) * len(case.sequences), may_share_seats=True, has_drafts=True)
    apart = replace(
        together,
        host_query_lens=(1,) * num_rows,
        host_context_lens=(2000,) * num_rows,
        host_prompt_lens=(0,) * num_rows,
    )

    def attend(rows: AttentionRows, fitting: int) -> Tensor:
        monkeypatch.setattr(fixed, "fitting_shares", lambda *_: fitting)
        plan = case.plan(replace(inputs, rows=rows), plan_invariant_on_gpu)
        assert [decode.row_map is None for decode in plan.decodes] == [rows is apart]
        out = torch.full_like(inputs.queries, torch.nan)
        plan.run(inputs.queries, inputs.cache, scale=case.scale, key_recipe=inputs.key_recipe, out=out)
        assert not plan.decodes[0].arrivals.any(), "the next layer starts to count where this one stopped"
        return out

    alone = attend(apart, 16)
    case.tolerance(torch.float16).check(alone, case.attend(inputs, plan_reference))
    for rows, fitting in ((apart, 0), (apart, 4), (together, 0)):
        assert torch.equal(attend(rows, fitting), alone)


def test_tokens_keep_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows are decoded follows from where prompts end, and from nothing else."""
    case = replace(ATTENTION, sequences=((1, 9), (40, 60), (3, 50), (1, 20)))
    rows = replace(case.inputs(torch.float32, DEVICE).rows, host_prompt_lens=(1, 40, 1, 0))
    plan = case.plan(replace(case.inputs(torch.float32, DEVICE), rows=rows), plan_invariant_on_gpu)
    (decode,), (prefill,) = plan.decodes, plan.prefills
    assert decode.row_map is not None
    assert decode.row_map.tolist() == [42, 43, 44]
    assert sorted(tile[:2] for tile in prefill.passes[0].tiles.tolist()) == [[0, 1], [1, 40], [41, 1]]


def _some_rows(
    case: attention_cases.Case, inputs: attention_cases.AttentionInputs, first: int, last: int, longest: int
) -> AttentionRows:
    """Rows first .. last - 1; those past the long sequence are the other's."""
    (long_len, long_context), (short_len, short_context) = case.sequences
    query_lens = (max(0, min(last, long_len) - first), max(0, last - max(first, long_len)))
    long_end = long_context - long_len + min(last, long_len)
    context_lens = (max(long_end, longest), short_context - short_len + max(0, last - long_len))
    prompt_lens = (NUM_PREFILLED[0] - first, NUM_PREFILLED[1] - max(0, first - long_len))
    kept = [index for index, query_len in enumerate(query_lens) if query_len > 0]
    return AttentionRows(
        positions=inputs.rows.positions[first:last],
        seats=inputs.rows.seats[first:last],
        block_tables=inputs.rows.block_tables,
        host_query_lens=tuple(query_lens[index] for index in kept),
        host_context_lens=tuple(context_lens[index] for index in kept),
        host_prompt_lens=tuple(min(max(0, prompt_lens[index]), query_lens[index]) for index in kept),
    )
