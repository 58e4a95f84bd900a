"""Attention may prepare heads itself: in every model it is given what the kernel before it would be given."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.kernels.head_inputs import reference
from facet.kernels.paged_attention import HeadsToPrepare, LayerCache
from facet.layers.attention import Attention, KindStep, LayerReads, PlannedAttention
from facet.layers.weight import Inputs
from tests.layers.test_rows_to_make import row_by_row
from tests.layers.test_weight_kinds import NAMES
from tests.model.paged_model import load
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint


@pytest.mark.parametrize("skip_upper", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_attention_prepares_heads(name: str, skip_upper: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(write_checkpoint(tmp_path, SHRUNK[name], random_tensors(SHRUNK[name]))).model
    expected = row_by_row(model, skip_upper=skip_upper)
    steps: list[KindStep] = []
    stored: list[bool] = []
    forward = Attention.forward

    def told(
        self: Attention, x: Inputs, step: KindStep, cache: LayerCache, source: Attention, *, is_stored: bool = False
    ) -> Tensor:
        steps.append(step)
        return forward(self, x, step, cache, source, is_stored=is_stored)

    def unprepared(self: PlannedAttention, heads: HeadsToPrepare, reads: LayerReads) -> Tensor | None:
        if reads.cache.is_shared:  # left to the kernel before
            return None
        stored.append(heads.key_weight is not None)
        queries = reference.prepare_heads(
            heads.projected,
            steps[-1].heads,
            query_weight=heads.query_weight,
            key_weight=heads.key_weight,
            eps=heads.eps,
            cos_sin=heads.cos_sin,
            cache=reads.cache if stored[-1] else None,
            write_blocks=steps[-1].write_blocks,
            write_slots=steps[-1].write_slots,
            values_are_normed=heads.values_are_normed,
        )
        return self(queries, reads)

    monkeypatch.setattr(Attention, "forward", told)
    monkeypatch.setattr(PlannedAttention, "unprepared", unprepared)
    assert torch.equal(row_by_row(model, skip_upper=skip_upper), expected)
    assert any(stored)
    assert not all(stored) or all(layer.owns_kv for layer in model.spec.layers)
