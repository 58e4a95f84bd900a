"""Whether answers are batch-invariant: what a flag says, or what device and weights decide."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL
from facet.model.batch_invariance import arithmetic_of, costs_little, is_batch_invariant, with_batch_invariance
from facet.model.weight_formats import FLAGS
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import write_config

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ONE, OTHER = {"layers.0.mlp.down_proj.weight": FLAGS["int8"]}, {"layers.1.mlp.down_proj.weight": FLAGS["int4"]}


def test_the_rule() -> None:
    assert is_batch_invariant(None, GPU, {})
    assert is_batch_invariant(None, GPU, ONE)
    assert not is_batch_invariant(None, GPU, OTHER)
    assert not is_batch_invariant(None, GPU, ONE | OTHER), "all matrices have to have it"
    for formats in ({}, ONE, OTHER):
        assert not is_batch_invariant(None, CPU, formats)
        for device in (CPU, GPU):
            assert is_batch_invariant(True, device, formats)
            assert not is_batch_invariant(False, device, formats)


def test_where_it_costs_little() -> None:
    head, other = "embed_tokens.weight", "layers.0.mlp.down_proj.weight"
    assert [name for name, format in FLAGS.items() if costs_little(other, format)] == ["int8"], "sums are exact"
    widened = replace(FLAGS["int8"], rounding=None)
    assert costs_little(head, widened), "outputs are many"
    assert not costs_little(other, widened)
    assert costs_little(head, replace(FLAGS["fp8"], rounding=None))
    assert not costs_little(head, replace(widened, scales=FLAGS["int4"].scales)), "another kernel"
    assert not costs_little(other, replace(FLAGS["int8"], rounding="int8_static")), "another kernel"


@pytest.mark.parametrize("asked", [True, False])
def test_a_flag_wins_and_nothing_is_read(asked: bool, tmp_path: Path) -> None:
    for device in (CPU, GPU):
        config = ModelConfig(model=str(tmp_path / "nothing"), batch_invariant=asked)
        assert with_batch_invariance(config, device) == config
    assert arithmetic_of(config) is (BATCH_INVARIANT if asked else USUAL)


def test_on_a_cpu_nothing_is_read(tmp_path: Path) -> None:
    assert with_batch_invariance(ModelConfig(model=str(tmp_path / "nothing")), CPU).batch_invariant is False


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({}, True), ({"quantization": "int8"}, True), ({"quantization": "int4"}, False), ({"quantize_head": True}, True)],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_decide_as_flags_have_them(
    flags: dict[str, object], expected: bool, dtype: str, tmp_path: Path
) -> None:
    write_config(tmp_path, wide("Gemma 4 31B"))
    config = ModelConfig(model=str(tmp_path), load_format="dummy", dtype=dtype, **flags)  # type: ignore[arg-type]
    assert with_batch_invariance(config, GPU).batch_invariant is expected


@pytest.mark.parametrize(
    ("name", "expected"), [("int8 w8a8", True), ("int4 groups of 32", False), ("fp8 dynamic", False), ("mixed", False)]
)
def test_weights_decide_as_files_have_them(name: str, expected: bool, tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS[name])
    assert with_batch_invariance(ModelConfig(model=str(tmp_path / "quantized")), GPU).batch_invariant is expected
    assert with_batch_invariance(ModelConfig(model=str(tmp_path / "dense")), GPU).batch_invariant
