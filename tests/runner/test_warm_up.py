"""Steps before the first request compile every decode kernel that a request may need, beside a prompt or alone."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.forward_batch import AttentionRows
from facet.kernels.linear import cases
from facet.kernels.paged_attention.cache import HeadShape, LayerCache
from facet.kernels.paged_attention.decode import tuning
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import SEPARATE, SEPARATE_8BIT, SHARED, SHARED_8BIT, Reader
from facet.kernels.paged_attention.gpu import plan_on_gpu
from facet.kernels.quantized.int4 import tuning as int4
from facet.kernels.quantized.int8_groups import tuning as int8_groups
from facet.model.loader import load_model
from facet.runner import warm_up
from facet.sampling import vocabulary
from tests.engine.harness import make_engine
from tests.tiny_models import TinyModel

PROCESSORS = 132  # of an H200
# Heads, key heads, dimensions, window.
LAYERS = {
    "E4B sliding": (8, 2, 256, 512),
    "E4B global": (8, 2, 512, 0),
    "E2B sliding": (8, 1, 256, 512),
    "E2B global": (8, 1, 512, 0),
    "12B sliding": (16, 8, 256, 1024),
    "12B global": (16, 1, 512, 0),
    "31B sliding": (32, 16, 256, 1024),
    "31B global": (32, 4, 512, 0),
    "26B-A4B global": (16, 2, 512, 0),
    "Gemma 3 1B sliding": (4, 1, 256, 512),
    "Gemma 3 4B global": (8, 4, 256, 0),
    "Gemma 3 12B global": (16, 8, 256, 0),
    "Gemma 3 27B sliding": (32, 16, 128, 1024),
    "Gemma 3 27B global": (32, 16, 128, 0),
    "Gemma 3n global": (8, 2, 256, 0),
}
HAVE_SHARED_VECTORS = ("12B global", "31B global", "26B-A4B global")
CONTEXTS = (1, 40, 70, 130, 200, 513, 1000, 2000, 9000, 100_000)
COUNTS = (*range(1, 18), 24, 33, 40, 67, 100, 128, 250, 380)


def decoded(name: str, query_lens: tuple[int, ...], num_computed: int) -> DecodePlan | None:
    heads, kv_heads, head_dim, window = LAYERS[name]
    num_rows = sum(query_lens)
    rows = AttentionRows(
        positions=torch.zeros(num_rows, dtype=torch.int32),
        seats=torch.zeros(num_rows, dtype=torch.int32),
        block_tables=(),
        host_query_lens=query_lens,
        host_context_lens=tuple(num_computed + count for count in query_lens),
        host_prompt_lens=query_lens,
    )
    shape = HeadShape(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim)
    table = torch.zeros(1, 1, dtype=torch.int32)
    plan = plan_on_gpu(rows, table, shape, window=window or None, tokens_per_block=16)
    return plan.decodes[0] if plan.decodes else None


def variant(reader: Reader, plan: DecodePlan) -> tuple[Any, ...]:
    """What the decode kernel of a step is compiled for."""
    heads = plan.rows.heads
    pages = torch.empty(
        1, 16, heads.num_kv_heads, heads.head_dim, dtype=torch.int8 if reader.widens_to_half else torch.bfloat16,
        device="meta",
    )  # fmt: skip
    cache = LayerCache(keys=pages, values=None if reader in (SHARED, SHARED_8BIT) else pages)
    queries = torch.empty(plan.num_rows, heads.num_heads, heads.head_dim, dtype=torch.bfloat16, device="meta")
    chosen = tuning.choose_decode_tuning(reader, queries, cache, plan)
    return (
        plan.row_map is None,
        chosen.keys_per_tile,
        chosen.num_warps,
        chosen.num_stages,
        chosen.merged_shares,
        chosen.num_splits == 1,
        chosen.num_splits > 1 and not chosen.last_merges,  # a second kernel
        chosen.exits_early and chosen.num_splits > 1,
    )


@pytest.mark.parametrize("is_8bit", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_all_variants_are_met(name: str, is_8bit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning,
        "fitting_shares",
        lambda plan, _device, programs: programs * PROCESSORS // (plan.num_rows * plan.rows.heads.num_kv_heads),
    )
    if name in HAVE_SHARED_VECTORS:
        reader = SHARED_8BIT if is_8bit else SHARED
    else:
        reader = SEPARATE_8BIT if is_8bit else SEPARATE
    steps = (*warm_up.PASSES, *warm_up.BESIDE_PROMPTS, *warm_up.ALONE)
    plans = (decoded(name, step.query_lens, step.num_computed) for step in steps)
    met = {variant(reader, plan) for plan in plans if plan is not None}
    for count in COUNTS:
        for query_lens in (count * (1,), (*(count * (1,)), 40), (20, *(count * (1,)))):
            plan = decoded(name, query_lens, 0)
            assert plan is not None
            for context in CONTEXTS:
                most_keys = min(context, plan.rows.window) if plan.rows.window else context
                needed = variant(reader, replace(plan, most_keys=most_keys))
                assert needed in met, f"{query_lens}, {context} tokens"


@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE], ids=lambda shape: shape.name)
def test_products_of_tens_of_rows_are_met(shape: cases.Shape) -> None:
    """A product cut another way is another kernel, unless only programs differ."""
    num_tiles, met = -(-shape.num_out // 16), [sum(step.query_lens) for step in warm_up.PASSES]
    for choose, block_in, fewest, most in (
        (int4.choose_wide_tuning, 128, int4.MAX_FEW_ROWS + 1, int4.MAX_WIDE_ROWS),
        (int8_groups.choose_wide_tuning, 64, int8_groups.MAX_FEW_ROWS + 1, int8_groups.MAX_WIDE_ROWS),
    ):

        def kernels(numbers: Iterable[int], choose: Any = choose, block_in: int = block_in) -> set[Any]:
            num_blocks = -(-shape.num_in // block_in)
            return {replace(choose(num_tiles, num_blocks, number), programs=1) for number in numbers}

        assert kernels(range(fewest, most + 1)) == kernels(number for number in met if fewest <= number <= most)


def test_log_probabilities_are_met(tiny_model: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernel was once compiled while the first request that asked for some waited, and others with it."""
    seen: list[Tensor] = []
    monkeypatch.setattr(vocabulary, "log_sum_exp", lambda logits: seen.append(logits) or logits.logsumexp(-1, True))
    config = ModelConfig(model=str(tiny_model("gemma4_e4b_small").folder), device="cpu", max_model_len=256)
    model = load_model(config).model
    make_engine(model).runner.run_made_up_steps()
    assert [logits.shape[1] for logits in seen] == [model.spec.vocab_size]
