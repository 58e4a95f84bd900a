"""`--embeddings-on-cpu` on a GPU: the same tokens and log-probabilities with less of its memory, graphs included."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from facet.config import ModelConfig
from facet.model.loader import LoadedModel, load_model
from facet.model.weight_map import PER_LAYER_TABLE
from tests.engine.harness import Answer, make_engine, mixed_requests, run
from tests.model.quantized_files import VARIANTS, write_variant
from tests.tiny_models import TinyModel

GRAPH_SIZES, PIECE_SIZES = (1, 2, 4, 8, 64), (16, 48, 128)


def loaded_and_bytes(folder: Path, **settings: object) -> tuple[LoadedModel, int]:
    gc.collect()
    before = torch.cuda.memory_allocated()
    loaded = load_model(ModelConfig(model=str(folder), device="cuda", **settings))  # type: ignore[arg-type]
    return loaded, torch.cuda.memory_allocated() - before


def answers(loaded: LoadedModel, window: int) -> dict[str, Answer]:
    requests = mixed_requests(window, loaded.spec.vocab_size, count=24, seed=5)
    engine = make_engine(loaded.model, max_num_batched_tokens=64, graph_sizes=GRAPH_SIZES, piece_sizes=PIECE_SIZES)
    return run(engine, requests)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gemma4_e2b_small", "gemma4_e4b_small", "gemma3n_small"])
def test_same_answers(name: str, dtype: str, tiny_model: Callable[[str], TinyModel]) -> None:
    tiny = tiny_model(name)
    usual, num_bytes = loaded_and_bytes(tiny.folder, dtype=dtype)
    hosted, fewer = loaded_and_bytes(tiny.folder, dtype=dtype, embeddings_on_cpu=True)
    table = usual.model.get_submodule(PER_LAYER_TABLE)
    assert num_bytes - fewer >= sum(parameter.nbytes for parameter in table.parameters())
    assert "in the host's memory" in hosted.lines()[0]
    assert answers(hosted, tiny.window) == answers(usual, tiny.window)


def test_a_quantized_table(tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS["gemma mobile"])
    usual, _ = loaded_and_bytes(tmp_path / "quantized", dtype="float32")
    hosted, _ = loaded_and_bytes(tmp_path / "quantized", dtype="float32", embeddings_on_cpu=True)
    token_ids = torch.arange(40, device="cuda")
    tables = [loaded.model.get_submodule(PER_LAYER_TABLE) for loaded in (usual, hosted)]
    rows = [table.look_up(token_ids) for table in tables]  # type: ignore[operator]
    assert torch.equal(rows[0], rows[1])


def test_memory_is_given_back(tiny_model: Callable[[str], TinyModel]) -> None:
    """Locked pages are unlocked with their model: the same memory can be locked again."""
    folder = tiny_model("gemma4_e4b_small").folder
    for _ in range(3):
        loaded, _ = loaded_and_bytes(folder, dtype="float32", embeddings_on_cpu=True)
        del loaded
