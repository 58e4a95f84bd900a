"""Weights in the host's memory: what a GPU is given to read is all of them, and nothing else."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.layers import host_memory
from facet.layers.host_memory import serve_from_host
from facet.layers.placement import Placement
from facet.model.loader import NO_TABLES, ON_THE_HOST_ANYWAY, build_model
from facet.model.weight_map import PER_LAYER_TABLE
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import write_config

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]


@pytest.mark.parametrize("name", ["int4 per-layer inputs", "gemma mobile"])
def test_a_table_is_served_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense in the one, codes and scales in the other. Here the GPU's view is another tensor with the same numbers."""
    given: list[Tensor] = []

    def seen(tensor: Tensor, device: torch.device) -> Tensor:
        given.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(host_memory, "as_seen_by_gpu", seen)
    write_variant(tmp_path, VARIANTS[name])
    loaded = load(tmp_path / "quantized", dtype="float32")
    before = PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)
    table = loaded.model.get_submodule(PER_LAYER_TABLE)
    held = [*table.parameters(), *table.buffers()]
    serve_from_host(table, torch.device("cpu"))
    assert {tensor.data_ptr() for tensor in given} == {tensor.data_ptr() for tensor in held}
    assert not {tensor.data_ptr() for tensor in (*table.parameters(), *table.buffers())} & {
        tensor.data_ptr() for tensor in held
    }
    assert torch.equal(PagedSequence(loaded.model, len(PROMPT)).run(PROMPT), before)


def test_only_the_table_is_placed_on_the_host(tmp_path: Path) -> None:
    spec = load(write_config(tmp_path, wide("Gemma 4 E4B")), dtype="float32", load_format="dummy").spec
    model = build_model(spec, 32, Placement(dtype=torch.float32, device=torch.device("meta")), tables_on_host=True)
    on_host = {name for name, parameter in model.named_parameters() if parameter.device.type == "cpu"}
    assert on_host == {f"{PER_LAYER_TABLE}.weight.values"}


@pytest.mark.parametrize(("name", "line"), [("Gemma 4 E4B", ON_THE_HOST_ANYWAY), ("Gemma 4 31B", NO_TABLES)])
def test_says_where_the_flag_changes_nothing(name: str, line: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path, wide(name))
    loaded = load(folder, dtype="float32", load_format="dummy", embeddings_on_cpu=True)
    assert loaded.lines() == (line,)
