"""Products may make the row that they take: in no model is the stream read before, and each row is made once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.add_norm import reference as norms
from facet.kernels.linear import normed_rings
from facet.kernels.linear import reference as products
from facet.kernels.linear.row_to_make import RowToMake
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.model.gemma import Gemma
from tests.layers.test_weight_kinds import NAMES, PROMPT
from tests.model.paged_model import PagedSequence, load
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint


class LateRows:
    """In place of `normed_rings`, for any device and model."""

    def __init__(self) -> None:
        self.to_make: list[RowToMake] = []
        self.num_made = 0

    def row_left_to_product(self, _product: Tensor, residual: Tensor, *arguments: Any) -> RowToMake | None:
        if len(residual) != 1:
            return None
        names = ("update", "update_weight", "next_weight", "eps", "scale")
        stream = torch.full_like(residual, torch.nan)
        row = RowToMake(residual=residual, **dict(zip(names, arguments, strict=True)), stream=stream)
        self.to_make.append(row)
        return row

    def _made(self, row: RowToMake) -> Tensor:
        self.to_make = [each for each in self.to_make if each is not row]
        self.num_made += 1
        assert row.stream.isnan().all(), "made twice"
        stream, normed = norms.add_norm(
            row.residual, row.update, row.update_weight, row.next_weight, row.eps, row.scale
        )
        row.stream.copy_(stream)
        return stream if normed is None else normed

    def linear(self, row: RowToMake, weight: Tensor) -> Tensor:
        return products.linear(self._made(row), weight)

    def geglu_linear(self, row: RowToMake, weight: Tensor) -> Tensor:
        return products.geglu_linear(self._made(row), weight)

    def gated_input_linear(self, row: RowToMake, weight: Tensor, per_layer_input: Tensor) -> Tensor:
        return gate_per_layer_input(self.linear(row, weight), per_layer_input)


def row_by_row(model: Gemma, *, skip_upper: bool) -> Tensor:
    """Logits behind every token but, where upper layers are skipped, those before the last three."""
    sequence = PagedSequence(model, len(PROMPT))
    wanted = [not skip_upper or index >= len(PROMPT) - 3 for index in range(len(PROMPT))]
    return torch.cat(
        [
            sequence.run([token], num_logit_rows=int(is_wanted), skip_upper=skip_upper)
            for token, is_wanted in zip(PROMPT, wanted, strict=True)
        ]
    )


@pytest.mark.parametrize("skip_upper", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_streams_are_read_when_they_are_made(
    name: str, skip_upper: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(write_checkpoint(tmp_path, SHRUNK[name], random_tensors(SHRUNK[name]))).model
    expected = row_by_row(model, skip_upper=skip_upper)
    late = LateRows()
    for function in ("row_left_to_product", "linear", "geglu_linear", "gated_input_linear"):
        monkeypatch.setattr(normed_rings, function, getattr(late, function))
    got = row_by_row(model, skip_upper=skip_upper)
    assert torch.equal(got, expected)
    assert not late.to_make, "rows that nobody made"
    norms_of_a_layer = 0 if model.spec.altup else 3 if model.spec.per_layer_input is not None else 2
    least = 3 if skip_upper else len(PROMPT)
    assert late.num_made >= norms_of_a_layer * (model.spec.num_layers - 1) * least
