"""What ranks hold of a model, and that together they compute what one computes alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from facet.config import ModelConfig
from facet.errors import ConfigError
from facet.kernels.quantized import QuantizedMatrix
from facet.kernels.quantized.random_codes import fill_random
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.rank_group import RankGroup
from facet.matrix_format import MatrixFormat, ScaleFormat
from facet.model.families import read_model_spec
from facet.model.loader import cuts_of, load_model
from facet.model.shard import cut_of, shard_of
from facet.model.weight_formats import FLAGS, OneFormat, expected_formats
from facet.model.weight_map import tensor_targets
from facet.ranks import Rank
from tests.model.paged_model import PagedSequence
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.model.test_quantized import round_nothing, values
from tests.published_configs import PUBLISHED
from tests.ranks import on_ranks
from tests.tiny_checkpoints import random_tensors, write_checkpoint
from tests.tiny_models import SMALL_WINDOW_NAMES, TinyModel

SPECS = {name: read_model_spec(config) for name, config in PUBLISHED.items()}
PROMPT = [2, *((7 * place) % 60 + 3 for place in range(30))]
# Sums over ranks are in another order than sums over all inputs: as far apart as two kernels for one product, through
# all layers. Logits are around 20.
TOLERANCE = 3e-4


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("name", SPECS)
def test_every_number_is_on_some_rank_and_only_key_heads_are_on_several(name: str, size: int) -> None:
    spec = SPECS[name]
    try:
        share = shard_of(spec, size)
    except ConfigError:
        assert any(layer.num_heads % size for layer in spec.layers)
        return
    for whole, part in zip(tensor_targets(spec), tensor_targets(share), strict=True):
        cuts = [cut_of(whole, part, Rank(index=index, size=size)) for index in range(size)]
        if cuts[0] is None:
            assert whole.shape == part.shape
            continue
        held = [place for cut in cuts if cut is not None for piece in cut.slices for place in (piece.start, piece.stop)]
        counts = sorted(zip(held[::2], held[1::2], strict=True))
        num_copies = size * math.prod(part.shape) // math.prod(whole.shape)
        assert num_copies == 1 or "k_proj" in whole.name or "v_proj" in whole.name
        merged = counts[::num_copies]
        assert merged[0][0] == 0
        assert merged[-1][1] == whole.shape[cuts[0].axis]
        assert all(before[1] == after[0] for before, after in pairwise(merged))


def test_a_rank_has_the_key_head_that_its_queries_read() -> None:
    """12B has sixteen heads, eight key heads in sliding layers and one in global ones."""
    spec = SPECS["Gemma 4 12B"]
    cuts = cuts_of(spec, shard_of(spec, 4), Rank(index=3, size=4))
    sliding, whole = spec.layers[0], next(layer for layer in spec.layers if layer.attention == "global")
    assert (sliding.num_heads, sliding.num_kv_heads, whole.num_kv_heads) == (16, 8, 1)
    assert cuts["layers.0.self_attn.q_proj.weight"].slices == (slice(12 * sliding.head_dim, 16 * sliding.head_dim),)
    assert cuts["layers.0.self_attn.k_proj.weight"].slices == (slice(6 * sliding.head_dim, 8 * sliding.head_dim),)
    assert f"layers.{whole.index}.self_attn.k_proj.weight" not in cuts
    assert cuts["layers.0.self_attn.o_proj.weight"].is_of_inputs
    assert cuts["embed_tokens.weight"].slices == (slice(3 * spec.vocab_size // 4, spec.vocab_size),)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("Gemma 4 31B", 0, "--tensor-parallel-size is 0, but must be 1 or more"),
        ("Gemma 4 31B", 3, "does not divide the 262144 tokens of the vocabulary. Sizes that do: 1, 2, 4, 8, 16, 32"),
        ("Gemma 4 E4B", 16, "does not divide the 8 heads of layer 0. Sizes that do: 1, 2, 4, 8"),
    ],
)
def test_sizes_that_do_not_divide(name: str, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shard_of(SPECS[name], size)


def test_groups_are_never_cut() -> None:
    """26B-A4B's experts are 704 wide, which is 5.5 groups of 128: they stay whole. So do not MLPs of 2112."""
    spec = SPECS["Gemma 4 26B-A4B"]
    grouped = OneFormat(replace(FLAGS["int4"], scales=ScaleFormat(dtype="float16", group=32)))
    formats = expected_formats(spec, grouped)
    experts = {name: format for name, format in formats.items() if ".experts." in name}
    assert shard_of(spec, 2, formats).layers[0].moe == replace(spec.layers[0].moe, width=352)  # type: ignore[type-var]
    whole = shard_of(spec, 4, experts).layers[0].moe
    assert whole is not None
    assert (whole.width, whole.num_held) == (704, 32)
    with pytest.raises(ConfigError, match=r"the 2112 inputs of layers.0.mlp.down_proj.weight \(int4.*do: 1, 2\."):
        shard_of(spec, 4, formats)


@pytest.mark.parametrize(
    "format",
    [
        FLAGS["int4"],
        FLAGS["int8"],
        FLAGS["nvfp4"],
        MatrixFormat(codes="uint4", scales=ScaleFormat(dtype="float16", group=16), has_zeros=True),
    ],
)
def test_columns_of_a_quantized_matrix(format: MatrixFormat) -> None:
    matrix = QuantizedMatrix.empty(format, (6, 96), torch.device("cpu"))
    fill_random(matrix, torch.Generator().manual_seed(0))
    assert torch.equal(matrix.columns(slice(32, 96)).values(), matrix.values()[:, 32:96])


def logits_of(config: ModelConfig, group: RankGroup | None = None) -> torch.Tensor:
    model = load_model(config, group=group).model
    sequence = PagedSequence(model, 64, stores=model.share)
    first = sequence.run(PROMPT[:20])
    return torch.cat((first, sequence.run(PROMPT[20:])))


def config_of(folder: Path, **settings: object) -> ModelConfig:
    return ModelConfig(model=str(folder), device="cpu", language_model_only=True, max_model_len=64, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "sizes"), [*((name, (2, 4)) for name in SMALL_WINDOW_NAMES), ("e4b_more_heads", (8,))]
)
def test_shares_compute_what_the_whole_does(
    name: str, sizes: tuple[int, ...], tiny_model: Callable[[str], TinyModel]
) -> None:
    config = config_of(tiny_model(name).folder)
    expected = logits_of(config)
    for size in sizes:
        together = torch.cat(on_ranks(size, lambda group: logits_of(config, group)), dim=-1)
        assert (together - expected).abs().max() < TOLERANCE
        assert torch.equal(together.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize(
    "name",
    ["int4 partly", "int4 per-layer inputs", "int4 experts fused", "int8 w8a8", "nvfp4 experts", "awq", "gptq v1"],
)
def test_shares_of_quantized_matrices(name: str, tmp_path: Path) -> None:
    """Inputs are not rounded here: a rank that has some of a row's inputs rounds them by a scale of their own."""
    write_variant(tmp_path, VARIANTS[name])
    config = config_of(tmp_path / "quantized", dtype="float32")

    def logits(group: RankGroup | None = None) -> torch.Tensor:
        model = load_model(config, group=group).model
        round_nothing(model)
        return PagedSequence(model, 64, stores=model.share).run(PROMPT)

    expected = logits()
    together = torch.cat(on_ranks(2, logits), dim=-1)
    assert (together - expected).abs().max() < 2e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize(("name", "quantization"), [("Gemma 4 E4B", "int4"), ("Gemma 3n E4B", "int4")])
def test_shares_of_what_is_quantized_while_loading(name: str, quantization: str, tmp_path: Path) -> None:
    """Per-layer gates are whole on every rank."""
    folder = write_checkpoint(tmp_path, wide(name), random_tensors(wide(name)))
    config = config_of(folder, dtype="float32", quantization=quantization)

    def logits(group: RankGroup | None = None) -> torch.Tensor:
        model = load_model(config, group=group).model
        assert isinstance(model.get_submodule("layers.0.per_layer_gate.projection.weight"), QuantizedWeight)
        round_nothing(model)
        return PagedSequence(model, 64, stores=model.share).run(PROMPT)

    expected = logits()
    together = torch.cat(on_ranks(2, logits), dim=-1)
    assert (together - expected).abs().max() < 2e-5 * max(1.0, float(expected.abs().max()))


def test_rows_are_quantized_before_they_are_cut(tmp_path: Path) -> None:
    """A scale of a whole row stays that of the whole row."""
    write_variant(tmp_path, VARIANTS["int4 rows"])
    config = config_of(tmp_path / "dense", dtype="float32", quantization="int8")
    whole = load_model(config).model.get_submodule("layers.0.mlp.down")
    shares = on_ranks(2, lambda group: load_model(config, group=group).model.get_submodule("layers.0.mlp.down"))
    assert torch.equal(torch.cat([values(share.weight) for share in shares], dim=-1), values(whole.weight))
