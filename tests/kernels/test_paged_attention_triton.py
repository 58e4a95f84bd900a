"""The Triton kernels against the reference: in Triton's interpreter on small shapes, on a GPU on real ones."""

import pytest
import torch

from facet.kernels.paged_attention import cases, reference

pytest.importorskip("triton")
from facet.kernels.paged_attention import triton as fast

ON_GPU = torch.cuda.is_available()

SMALL = (
    cases.Case(
        name="sliding, decode and chunks, 5 tokens per block",
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        window=10,
        tokens_per_block=5,
        sequences=((1, 1), (1, 30), (7, 19), (3, 3), (1, 10), (1, 11)),
    ),
    cases.Case(
        name="global, decode and chunks, 12 tokens per block",
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        window=None,
        tokens_per_block=12,
        sequences=((1, 1), (1, 150), (7, 19), (40, 70)),
    ),
    cases.Case(
        name="keys from values, one key head for eight",
        num_heads=8,
        num_kv_heads=1,
        head_dim=64,
        window=None,
        tokens_per_block=40,
        sequences=((1, 1), (1, 150), (7, 19), (40, 70)),
        num_rotated_pairs=8,
    ),
    cases.Case(
        name="long prompt alone, window not a multiple of anything",
        num_heads=2,
        num_kv_heads=2,
        head_dim=32,
        window=37,
        tokens_per_block=7,
        sequences=((190, 260),),
        scale=0.3,
    ),
)
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", [*SMALL, *(cases.CASES if ON_GPU else ())], ids=lambda case: case.name)
def test_same_as_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype, "cuda" if ON_GPU else "cpu")
    results = []
    for module in (fast, reference):
        plan = module.plan_attention(
            inputs.rows, inputs.block_table, case.heads, window=case.window, tokens_per_block=case.tokens_per_block
        )
        results.append(
            module.paged_attention(inputs.queries, inputs.cache, plan, scale=case.scale, key_recipe=inputs.key_recipe)
        )
    assert results[0].dtype == dtype
    case.tolerance(dtype).check(results[0], results[1])
