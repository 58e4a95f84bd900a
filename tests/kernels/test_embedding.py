"""The scaled embedding: the reference against a plain loop, the Triton kernel against the reference."""

import pytest
import torch

from facet.kernels.embedding import cases, embed, reference

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter rounds to bfloat16 in its own way, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16


@pytest.mark.parametrize("case", cases.SMALL_CASES, ids=str)
def test_every_row_is_its_tokens_row_times_the_scale(case: cases.Case) -> None:
    token_ids, table, scale = case.inputs(torch.float32)
    got = embed(token_ids, table, scale)
    for row, token_id in enumerate(token_ids.tolist()):
        assert torch.equal(got[row], table[token_id] * scale)


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", [*cases.SMALL_CASES, *(cases.CASES if ON_GPU else ())], ids=str)
def test_same_as_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    from facet.kernels.embedding import triton as fast

    token_ids, table, scale = case.inputs(dtype, DEVICE)
    for ids in (token_ids, token_ids.int()):
        got = fast.embed(ids, table, scale)
        assert got.dtype == dtype
        cases.EXACT.check(got, reference.embed(ids, table, scale))


def test_an_id_outside_the_table_reads_nothing() -> None:
    pytest.importorskip("triton")
    from facet.kernels.embedding import triton as fast

    _, table, scale = cases.SMALL_CASES[1].inputs(torch.float32, DEVICE)
    got = fast.embed(torch.tensor([-1, 3, 50], device=DEVICE), table, scale)
    assert got[[0, 2]].eq(0).all()
    assert torch.equal(got[1], table[3] * scale)
