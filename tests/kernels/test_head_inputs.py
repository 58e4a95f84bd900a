"""From projection to attention: the reference step by step, and the Triton kernel against it."""

import pytest
import torch

from facet.forward_batch import AttentionRows
from facet.kernels.head_inputs import cases, prepare_heads, reference
from facet.kernels.paged_attention.reference import row_places
from facet.kernels.rms_norm import rms_norm
from facet.kernels.rotary import apply_rotary

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter cuts bfloat16 off where a GPU rounds, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16


def small(name: str, **changes: int | bool) -> cases.Case:
    sizes = dict(num_rows=3, num_heads=4, num_kv_heads=2, head_dim=32, num_pairs=16, num_projected=3, num_stored=2)
    return cases.Case(name=name, **(sizes | changes))  # type: ignore[arg-type]


SMALL = (
    small("keys and values"),
    small("one row", num_rows=1),
    small("a quarter of the pairs turn", num_pairs=4),
    small("values are raw keys, both stored", num_projected=2),
    small("shared", num_projected=2, num_stored=1, num_pairs=4),
    small("queries alone", num_projected=1, num_stored=0),
    small("keys and values alone", num_heads=0),
    small("shared, alone", num_heads=0, num_projected=2, num_stored=1, num_pairs=4),
    small("values as they are projected", values_are_normed=False),
    small("one key head for three", num_heads=3, num_kv_heads=1),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_reference_step_by_step(case: cases.Case, dtype: torch.dtype) -> None:
    """Row by row and head by head, from the columns where each head lies."""
    inputs = case.inputs(dtype)
    arguments = inputs.arguments
    pages = inputs.pages.clone()
    queries = prepare_heads(inputs.projected, case.heads, **arguments)
    assert queries.shape == (case.num_rows, case.num_heads, case.head_dim)
    size = case.tokens_per_block
    for row in range(case.num_rows):
        vectors = inputs.projected[row].view(-1, 1, case.head_dim)
        angles = arguments["cos_sin"][row]
        for head in range(case.num_heads):
            expected = apply_rotary(rms_norm(vectors[head], arguments["query_weight"], 1e-6), angles)
            assert torch.equal(queries[row, head], expected[0])
        page, slot = pages[arguments["write_blocks"][row]], arguments["write_slots"][row]
        for head in range(case.num_kv_heads if case.num_stored else 0):
            raw_key = vectors[case.num_heads + head]
            raw_value = vectors[case.num_heads + (case.num_projected - 2) * case.num_kv_heads + head]
            value = rms_norm(raw_value, None, 1e-6) if case.values_are_normed else raw_value
            key = apply_rotary(rms_norm(raw_key, arguments["key_weight"], 1e-6), angles)
            page[1 + slot, head] = value[0] if case.num_stored == 1 else key[0]
            if case.num_stored == 2:
                page[size + 2 + slot, head] = value[0]
    torch.testing.assert_close(inputs.pages, pages, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("vectors_per_program", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", [*SMALL, *(cases.CASES if ON_GPU else ())], ids=lambda case: case.name)
def test_same_as_the_reference(case: cases.Case, dtype: torch.dtype, vectors_per_program: int | None) -> None:
    pytest.importorskip("triton")
    from facet.kernels.head_inputs import triton as fast

    got, expected = (case.inputs(dtype, DEVICE) for _ in range(2))
    queries = fast.prepare_heads(got.projected, case.heads, **got.arguments, vectors_per_program=vectors_per_program)
    assert queries.dtype == dtype
    case.tolerance(dtype).check(queries, reference.prepare_heads(expected.projected, case.heads, **expected.arguments))
    assert torch.equal(got.pages.isnan(), expected.pages.isnan())
    case.tolerance(dtype).check(got.pages.nan_to_num(), expected.pages.nan_to_num())


@pytest.mark.parametrize("num_rows", [1, 300])
def test_row_places(num_rows: int) -> None:
    pytest.importorskip("triton")
    from facet.kernels.paged_attention import places as fast

    generator = torch.Generator(DEVICE).manual_seed(0)

    def integers(bound: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=generator, device=DEVICE, dtype=torch.int32)

    block_table = integers(1000, 5, 40)[:, :31]  # a table is as wide as its longest row may become
    rows = AttentionRows(
        positions=integers(31 * 7, num_rows),
        seats=integers(5, num_rows),
        block_tables=(block_table,),
        host_query_lens=(1,) * num_rows,
        host_context_lens=(1,) * num_rows,
        host_prompt_lens=(0,) * num_rows,
    )
    for got, expected in zip(
        fast.row_places(rows, block_table, tokens_per_block=7),
        row_places(rows, block_table, tokens_per_block=7),
        strict=True,
    ):
        assert got.dtype == torch.int64
        assert torch.equal(got, expected)
