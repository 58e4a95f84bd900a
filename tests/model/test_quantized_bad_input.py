"""Quantized checkpoints that contradict themselves, lack something or are not for us: one clear line each."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.errors import UserError
from tests.model.paged_model import load
from tests.model.quantized_files import (
    LINEAR,
    VARIANTS,
    Variant,
    Writer,
    compressed,
    config_of,
    gemma,
    ints,
    tensors_of,
)
from tests.tiny_checkpoints import write_checkpoint, write_config

LAYER = "model.layers.1.mlp.down_proj"
Change = Callable[[dict[str, Tensor]], None]


@cache
def built(write: Writer, base: str, experts: str) -> dict[str, Tensor]:
    variant = Variant({}, write, base=base, experts=experts, untied=write is gemma)
    return {name: tensor.contiguous() for name, tensor in tensors_of(variant, config_of(variant))[0].items()}


def refusal(folder: Path, variant: Variant, change: Change = lambda tensors: None) -> str:
    tensors = {name: tensor.clone() for name, tensor in built(variant.write, variant.base, variant.experts).items()}
    change(tensors)
    write_checkpoint(folder, config_of(variant) | {"quantization_config": variant.config}, tensors)
    with pytest.raises(UserError) as caught:
        load(folder, dtype="float32")
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


def drop(name: str) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[f"{LAYER}.{name}"]

    return change


def put(name: str, tensor: Tensor) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{LAYER}.{name}"] = tensor

    return change


def spoil(name: str, number: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{LAYER}.{name}"].flatten()[0] = number

    return change


INT4 = "int4 groups of 32"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            INT4,
            drop("weight_scale"),
            f"{LAYER} is quantized, but lacks weight_scale; it has weight_packed, weight_shape",
        ),
        (INT4, drop("weight_packed"), f"{LAYER} is quantized, but lacks weight_packed"),
        ("int4 zero points", drop("weight_zero_point"), "lacks weight_zero_point"),
        ("int8 static", drop("input_scale"), "lacks input_scale"),
        ("nvfp4", drop("weight_global_scale"), "lacks weight_global_scale"),
        ("awq", drop("qzeros"), "lacks qzeros"),
        ("gptq v1 order", drop("g_idx"), "lacks g_idx"),
        ("modelopt fp8", drop("input_scale"), "lacks input_scale"),
        ("fp8 of transformers", drop("weight_scale_inv"), "lacks weight_scale_inv"),
        ("gemma mobile", drop("weight_scale"), "lacks weight_scale"),
        (INT4, put("weight_global_scale", torch.ones(1)), "has weight_global_scale beside weight_packed"),
        (INT4, put("bias", torch.ones(64)), "1 unexpected: model.layers.1.mlp.down_proj.bias"),
        (INT4, put("weight", torch.ones(64, 192)), "is unquantized .F32., but weight_packed, .* are there too"),
        (INT4, put("weight_scale", torch.ones(64, 3)), r"F32 \[64, 3\], but by quantization_config .* F32 \[64, 6\]"),
        (INT4, put("weight_packed", torch.ones(64, 24)), r"F32 \[64, 24\], but by .* I32 \[64, 24\]"),
        (INT4, put("weight_shape", torch.tensor([64, 200])), r"weight_shape says \[64, 200\], but weight_packed"),
        (INT4, spoil("weight_scale", float("nan")), f"{LAYER} has scales that are negative or no numbers"),
        (INT4, spoil("weight_scale", -1.0), "negative or no numbers"),
        ("fp8 dynamic", spoil("weight_scale", float("inf")), "negative or no numbers"),
        ("fp8 dynamic", spoil("weight", float("nan")), f"{LAYER} has weights that are no numbers"),
        ("nvfp4", spoil("weight_global_scale", 0.0), "negative or no numbers"),
        ("int4 g_idx", spoil("weight_g_idx", 17), "g_idx does not divide 192 inputs into 6 equal groups"),
        ("gptq v1", spoil("qzeros", 0), "has zero points of its own, but quantization_config says sym"),
        ("gptq v1", spoil("g_idx", 5), "has an order of groups"),
        (
            "gemma mobile",
            put("weight", torch.ones(64, 96, dtype=torch.uint8)),
            r"U8 \[64, 96\], but by .* U8 \[64, 48\]",
        ),
    ],
)
def test_tensors_that_do_not_fit(name: str, change: Change, words: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    message = refusal(tmp_path, variant, change)
    assert re.search(words, message), message


def test_experts_that_are_not_all_there(tmp_path: Path) -> None:
    split = VARIANTS["int4 experts split"]
    folder = "model.layers.1.experts"

    def lose(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(f"{folder}.3.up_proj.")]:
            del tensors[name]

    assert "layers.1.experts lacks 1 of 12 matrices, among them 3.up_proj" in refusal(tmp_path / "a", split, lose)

    def unquantize(tensors: dict[str, Tensor]) -> None:
        lose(tensors)
        tensors[f"{folder}.3.up_proj.weight"] = torch.ones(32, 64)

    assert "gate_up_proj are not all quantized in the same way" in refusal(tmp_path / "b", split, unquantize)

    def fewer(tensors: dict[str, Tensor]) -> None:
        tensors[f"{folder}.down_proj_scale"] = tensors[f"{folder}.down_proj_scale"][:4].contiguous()

    assert "but there are 6 experts" in refusal(tmp_path / "c", VARIANTS["int4 experts fused"], fewer)


def changed(name: str, **fields: Any) -> Variant:
    return replace(VARIANTS[name], config=VARIANTS[name].config | fields)


def weights(**more: Any) -> Variant:
    return replace(VARIANTS[INT4], config=compressed((LINEAR, ints(4, 32) | more, None)))


def inputs(**given: Any) -> Variant:
    return replace(VARIANTS[INT4], config=compressed((LINEAR, ints(4, 32), given)))


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        (
            changed(INT4, quant_method="hqq"),
            "quantized by 'hqq', which Facet does not read. It reads compressed-tensors, awq",
        ),
        (changed(INT4, quant_method="bitsandbytes"), "bitsandbytes, a format for training. Use the unquantized"),
        (changed(INT4, quant_method="torchao"), "torchao, whose files hold Python objects"),
        (changed(INT4, quant_method=4), "quant_method is 4"),
        (changed(INT4, format="marlin-24"), "stored as 'marlin-24', which Facet does not read"),
        (changed(INT4, format="sparse-24-bitmask"), "stored as 'sparse-24-bitmask'"),
        (changed(INT4, format="mxfp6-pack-quantized"), "stored as 'mxfp6-pack-quantized'"),
        (changed(INT4, config_groups={}), "config_groups is {}"),
        (weights(num_bits=3), "3-bit 'int', which Facet does not read"),
        (weights(num_bits=6, type="float"), "6-bit 'float'"),
        (weights(strategy="attn_head"), "strategy is 'attn_head', but must be tensor, channel"),
        (weights(strategy="block", block_structure="64x64"), "block_structure is '64x64', but must be .128, 128."),
        (weights(group_size=48), "inputs, which groups of 48 do not divide"),
        (weights(group_size=64), r"but by quantization_config and the model's shape it would be .* \[\d+, 1\]"),
        (weights(group_size=None), "group_size is None, but must be given"),
        (
            inputs(num_bits=8, type="int", symmetric=False, strategy="token", dynamic=True),
            "not to eight bits around zero",
        ),
        (inputs(num_bits=8, type="int", strategy="channel"), "strategy is 'channel'"),
        (changed("awq", version="gemv"), "AWQ's 'gemv' kernels; Facet reads version gemm"),
        (changed("awq", bits=8), "bits is 8, but must be 4"),
        (changed("awq", group_size=48), "groups of 48 do not divide"),
        (changed("gptq v1", checkpoint_format="marlin"), "packed as 'marlin'; Facet reads gptq and gptq_v2"),
        (changed("gptq v1", bits=3), "bits is 3, but must be 4 or 8"),
        (changed("gptq v1", dynamic={"-:(": {}}), r"'\(' is not a pattern"),
        (changed("gptq v1", checkpoint_format="gptq_v2"), "has zero points of its own.*Is checkpoint_format right"),
        (
            changed("autoround", packing_format="auto_round:marlin"),
            "AutoRound packed the weights as 'auto_round:marlin'",
        ),
        (changed("fp8 of transformers", fmt="e5m2"), "FP8 of the kind 'e5m2'"),
        (changed("fp8 of transformers", weight_block_size=[64, 64]), "weight_block_size is .64, 64."),
        (changed("fp8 of transformers", activation_scheme="maybe"), "activation_scheme is 'maybe'"),
        (
            changed("modelopt fp8", quant_algo="W4A8_AWQ"),
            "ModelOpt quantized the weights with 'W4A8_AWQ'; Facet reads FP8",
        ),
        (
            changed("modelopt mixed", quantized_layers={"model.layers.0.mlp.up_proj": {"quant_algo": "INT4_AWQ"}}),
            "ModelOpt quantized the weights with 'INT4_AWQ'",
        ),
        (changed("modelopt mixed", quantized_layers={}), "quantized_layers is {}"),
        (
            changed("modelopt mixed", quantized_layers={"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}}),
            "is quantized, but quantized_layers does not name it",
        ),
        (changed("modelopt nvfp4", group_size=32), "group_size is 32, but must be 16"),
        (changed("gemma mobile", num_bits=3), "num_bits is 3, but must be 2, 4 or 8"),
        (changed("gemma mobile", module_quant_configs={"(": {"num_bits": 2}}), r"'\(' is not a pattern"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_configs_that_are_not_read(variant: Variant, words: str, tmp_path: Path) -> None:
    assert re.search(words, refusal(tmp_path, variant)), words


def test_pickled_files_are_not_read(tmp_path: Path) -> None:
    write_config(tmp_path, config_of(VARIANTS[INT4]))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(UserError, match=r"holds pickled weights \(pytorch_model.bin\), which are programs"):
        load(tmp_path, dtype="float32")


def test_outputs_that_are_rounded_are_not_read(tmp_path: Path) -> None:
    config = compressed((LINEAR, ints(4, 32), None))
    config["config_groups"]["group_0"]["output_activations"] = {"num_bits": 8}
    assert "rounds outputs of its layers" in refusal(tmp_path, replace(VARIANTS[INT4], config=config))


def test_a_config_without_a_method_says_nothing(tmp_path: Path) -> None:
    """Published files of unquantized weights have such a section."""
    variant = VARIANTS[INT4]
    tensors = {name: tensor.contiguous() for name, tensor in tensors_of(variant, config_of(variant))[1].items()}
    write_checkpoint(tmp_path, config_of(variant) | {"quantization_config": {"bits": 4}}, tensors)
    assert not load(tmp_path, dtype="float32").formats


def test_codes_without_a_config_are_refused(tmp_path: Path) -> None:
    variant = replace(VARIANTS[INT4], config={})
    message = refusal(tmp_path, variant)
    assert "missing: layers.0.self_attn.q_proj.weight" in message
    assert re.search(r"unexpected: .*weight_packed", message)


def test_a_config_without_codes_is_no_error(tmp_path: Path) -> None:
    """What is stored decides: a checkpoint may be dense although its config names a scheme."""
    variant = VARIANTS[INT4]
    tensors = {name: tensor.contiguous() for name, tensor in tensors_of(variant, config_of(variant))[1].items()}
    write_checkpoint(tmp_path, config_of(variant) | {"quantization_config": variant.config}, tensors)
    assert not load(tmp_path, dtype="float32").formats
