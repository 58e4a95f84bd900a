"""Tiny quantized checkpoints in the formats of published ones, written byte by byte, with the numbers they stand for.

Nothing here is shared with the readers: codes are drawn, packed by the formats' definitions, and turned into numbers by
their formulas.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facet.model.families import read_model_spec
from facet.model.weight_map import TensorTarget, tensor_targets
from tests.published_configs import Config, pattern
from tests.tiny_checkpoints import SHRUNK, write_checkpoint

Parts = dict[str, Tensor]
# Of a module and a matrix [outputs, inputs]: the tensors that a file has, and the numbers. None: unquantized.
Writer = Callable[[str, tuple[int, int], torch.Generator], "tuple[Parts, Tensor] | None"]

BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def wide(name: str) -> Config:
    """Four layers whose matrices hold groups of 32; blocks of 128 fit 192 with a rest."""
    config = SHRUNK[name] | {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "layer_types": pattern(1, 4),
        "intermediate_size": 192,
        "head_dim": 16,
        "dtype": "bfloat16",
    }
    small = {
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 32,
        "moe_intermediate_size": 32,
        "laurel_rank": 32,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
    }
    # Zero means that a model has no such thing.
    return config | {key: value for key, value in small.items() if config.get(key)}


@dataclass(frozen=True)
class Variant:
    config: dict[str, Any]  # quantization_config
    write: Writer
    base: str = "Gemma 4 31B"
    experts: str = "split"  # fused, split, or split under moe
    more: Mapping[str, Tensor] = field(default_factory=dict)  # other tensors, by name
    untied: bool = False


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """Along the last axis, lowest bits first."""
    per_word = 32 // bits
    whole = torch.nn.functional.pad(codes.long(), (0, -codes.shape[-1] % per_word))
    words = (whole.reshape(*codes.shape[:-1], -1, per_word) << (bits * torch.arange(per_word))).sum(-1)
    return (words - (words >= 2**31) * 2**32).to(torch.int32)


def pack_bytes(codes: Tensor, bits: int) -> Tensor:
    """Codes of 2 or 4 bits into bytes, lowest bits first."""
    apart = codes.reshape(*codes.shape[:-1], -1, 8 // bits)
    return sum(apart[..., j] << (bits * j) for j in range(8 // bits)).to(torch.uint8)  # type: ignore[union-attr]


def draw(shape: tuple[int, ...], low: int, high: int, generator: torch.Generator) -> Tensor:
    return torch.randint(low, high, shape, generator=generator)


def draw_scales(shape: tuple[int, ...], size: float, generator: torch.Generator, dtype: torch.dtype = BF16) -> Tensor:
    return ((torch.rand(shape, generator=generator) + 0.5) * size).to(dtype)


def spread(t: Tensor, shape: tuple[int, int]) -> Tensor:
    """Scales of groups, rows or the whole to every number."""
    wide = t.float().reshape(-1, 1) if t.ndim < 2 else t.float()
    return wide.repeat_interleave(shape[1] // wide.shape[1], 1).expand(shape)


def packed_integers(bits: int, group: int | None, *, is_symmetric: bool = True, has_order: bool = False) -> Writer:
    def write(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor]:
        count = 1 if group is None else shape[1] // group
        codes = draw(shape, 0, 2**bits, generator)
        scales = draw_scales((shape[0], count), 2.0**-bits * shape[1] ** -0.5, generator)
        parts = {"weight_packed": pack_words(codes, bits), "weight_scale": scales, "weight_shape": torch.tensor(shape)}
        zeros = torch.full((shape[0], count), 2 ** (bits - 1))
        if not is_symmetric:
            zeros = draw((shape[0], count), 0, 2**bits, generator)
            parts["weight_zero_point"] = pack_words(zeros.T, bits).T.contiguous()
        groups = torch.arange(shape[1]) // (group or shape[1])
        if has_order:
            groups = groups[torch.randperm(shape[1], generator=generator)]
            parts["weight_g_idx"] = groups.int()
        return parts, (codes - zeros[:, groups]).float() * scales.float()[:, groups]

    return write


def plain_integers(*, is_symmetric: bool = True, input_scale: float | None = None) -> Writer:
    def write(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor]:
        codes, scales = draw(shape, -128, 128, generator), draw_scales((shape[0], 1), shape[1] ** -0.5 / 74, generator)
        parts = {"weight": codes.to(torch.int8), "weight_scale": scales}
        zeros = torch.zeros(shape[0], 1)
        if not is_symmetric:
            zeros = draw((shape[0], 1), -20, 20, generator).float()
            parts["weight_zero_point"] = zeros.to(torch.int8)
        if input_scale is not None:
            parts["input_scale"] = torch.tensor([input_scale], dtype=BF16)
        return parts, (codes - zeros) * scales.float()

    return write


def draw_fp8(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator).to(FP8)


def floats(kind: str, *, scale_name: str = "weight_scale", dtype: torch.dtype = BF16, static: bool = False) -> Writer:
    def write(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor]:
        codes, size = draw_fp8(shape, generator), shape[1] ** -0.5
        blocks = (-(-shape[0] // 128), -(-shape[1] // 128))
        scales = draw_scales({"tensor": (1,), "number": (), "channel": (shape[0], 1), "block": blocks}[kind], size,
                             generator, dtype)  # fmt: skip
        spread_out = (
            scales.float().repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
            if kind == "block"
            else scales.float()
        )
        parts = {"weight": codes, scale_name: scales}
        if static:
            parts["input_scale"] = torch.tensor(0.01) if kind == "number" else torch.tensor([0.01], dtype=dtype)
        return parts, codes.float() * spread_out

    return write


def four_bit_floats(layout: str) -> Writer:
    """nvfp4 (a divisor for the whole), mxfp4, or ModelOpt's NVFP4 (a factor)."""

    def write(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor]:
        codes, size = draw(shape, 0, 16, generator), shape[1] ** -0.5 / 3
        numbers = FP4[codes]
        if layout == "mxfp4":
            exponents = draw((shape[0], shape[1] // 32), 120, 126, generator).to(torch.uint8)
            parts = {"weight_packed": pack_bytes(codes, 4), "weight_scale": exponents}
            return parts, numbers * spread(torch.exp2(exponents.float() - 127), shape)
        local = draw_scales((shape[0], shape[1] // 16), 100.0, generator, FP8)
        if layout == "nvfp4":
            whole = torch.tensor([128.0 / size])  # a power of two or not: 64 and 192 inputs make both
            parts = {"weight_packed": pack_bytes(codes, 4), "weight_scale": local, "weight_global_scale": whole}
            parts["input_global_scale"] = torch.tensor([300.0])
            return parts, numbers * spread(local.float() / whole, shape)
        factor = torch.tensor(size / 128)
        parts = {"weight": pack_bytes(codes, 4), "weight_scale": local, "weight_scale_2": factor}
        parts["input_scale"] = torch.tensor(0.1)
        return parts, numbers * spread(local.float() * factor, shape)

    return write


def awq(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor] | None:
    count = shape[1] // 32
    codes, zeros = draw(shape, 0, 16, generator), draw((shape[0], count), 0, 16, generator)
    scales = draw_scales((shape[0], count), shape[1] ** -0.5 / 16, generator, F16)

    def pack(t: Tensor) -> Tensor:
        """Transposed; of every eight outputs, in the order 0 2 4 6 1 3 5 7."""
        return pack_words(t.T.reshape(t.shape[1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(-2), 4)

    parts = {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales.T.contiguous()}
    return parts, (codes - spread(zeros, shape)) * spread(scales, shape)


def gptq(bits: int, version: int, *, is_symmetric: bool = True, has_order: bool = False) -> Writer:
    def write(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor]:
        count = shape[1] // 32
        codes = draw(shape, 0, 2**bits, generator)
        middle = torch.full((shape[0], count), 2 ** (bits - 1))
        zeros = middle if is_symmetric else draw((shape[0], count), 0, 2**bits, generator)
        scales = draw_scales((shape[0], count), 2.0**-bits * shape[1] ** -0.5, generator, F16)
        groups = torch.arange(shape[1]) // 32
        if has_order:
            groups = groups[torch.randperm(shape[1], generator=generator)]
        stored = (zeros - 1) % 2**bits if version == 1 else zeros  # a zero point of 0 wraps
        parts = {
            "qweight": pack_words(codes.T.T, bits).T.contiguous(),
            "qzeros": pack_words(stored.T, bits),
            "scales": scales.T.contiguous(),
            "g_idx": groups.int(),
        }
        return parts, (codes - zeros[:, groups]).float() * scales.float()[:, groups]

    return write


GEMMA_BITS = {"mlp": 2, "per_layer_input_gate": 8, "embed_tokens_per_layer": 4, "embed_tokens": 2, "lm_head": 2}


def gemma(module: str, shape: tuple[int, int], generator: torch.Generator) -> tuple[Parts, Tensor] | None:
    if "per_layer_model_projection" in module:
        return None
    bits = next((bits for word, bits in GEMMA_BITS.items() if word in module), 4)
    codes = draw(shape, 0, 2**bits, generator)
    scales = draw_scales((shape[0], 1), shape[1] ** -0.5 * 2.0 ** (1 - bits), generator, F32)
    stored = (codes - 128).to(torch.int8) if bits == 8 else pack_bytes(codes, bits)
    numbers = (codes - 2 ** (bits - 1)).float() * scales
    if "embed_tokens" in module:
        return {"embedding_quantized": stored, "embedding_scale": scales}, numbers
    given = torch.tensor(0.0 if "down_proj" in module else 0.02)
    parts = {"weight": stored, "weight_scale": scales, "input_activation_scale": given}
    return parts | {"output_activation_scale": torch.tensor(0.0)}, numbers


def without(writer: Writer, *words: str) -> Writer:
    """Modules whose names have one of the words are left alone."""
    return lambda module, shape, generator: (
        None if any(word in module for word in words) else writer(module, shape, generator)
    )


def mixed(word: str, writer: Writer, other: Writer) -> Writer:
    return lambda module, shape, generator: (writer if word in module else other)(module, shape, generator)


def compressed(
    *groups: tuple[list[str], dict[str, Any], dict[str, Any] | None], format: str | None = None
) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "ignore": ["lm_head", "re:.*embed.*", "re:.*router.*"],
        "config_groups": {
            f"group_{index}": {"targets": targets, "weights": weights, "input_activations": inputs}
            for index, (targets, weights, inputs) in enumerate(groups)
        },
    }


def ints(bits: int, group: int | None, **more: Any) -> dict[str, Any]:
    strategy = "channel" if group is None else "group"
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "group_size": group} | more


def fp8(strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy} | more


def fp4(group: int) -> dict[str, Any]:
    return {"num_bits": 4, "type": "float", "strategy": "tensor_group" if group == 16 else "group", "group_size": group}


def tokens(kind: str) -> dict[str, Any]:
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}


LINEAR = ["Linear"]
KEPT = ("embed_tokens", "router", "lm_head", "altup.co", "altup.pr", "modality")
MOE = "Gemma 4 26B-A4B"


def _ct(weights: dict[str, Any], writer: Writer, inputs: dict[str, Any] | None = None, **more: Any) -> Variant:
    return Variant(compressed((LINEAR, weights, inputs)), without(writer, *KEPT), **more)


def _gptq(bits: int, version: int, *, sym: bool = True, desc_act: bool = False) -> Variant:
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": sym, "desc_act": desc_act}
    config["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    writer = without(gptq(bits, version, is_symmetric=sym, has_order=desc_act), *KEPT)
    return Variant(config, writer, base="Gemma 3 1B")


def _modelopt(algorithm: str, writer: Writer, **more: Any) -> Variant:
    config = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["*embed_tokens*", "*router*"]}
    return Variant(config, without(writer, *KEPT), **more)


INT4, NVFP4 = packed_integers(4, 32), four_bit_floats("nvfp4")
VARIANTS: dict[str, Variant] = {
    "int4 groups of 32": _ct(ints(4, 32), INT4),
    "int4 groups of 64": _ct(ints(4, 64), packed_integers(4, 64), base="Gemma 3 1B"),
    "int4 per-layer inputs": _ct(ints(4, 32), INT4, base="Gemma 4 E4B"),
    "int4 streams": _ct(ints(4, 32), INT4, base="Gemma 3n E4B"),
    "int4 zero points": _ct(ints(4, 32, symmetric=False), packed_integers(4, 32, is_symmetric=False)),
    "int4 rows": _ct(ints(4, None), packed_integers(4, None)),
    "int4 g_idx": _ct(ints(4, 32, actorder="group"), packed_integers(4, 32, has_order=True)),
    "int4 partly": _ct(ints(4, 32), without(INT4, "v_proj", "1.mlp.gate_proj", "layers.2.self_attn.k_proj")),
    "int4 experts split": _ct(ints(4, 32), INT4, base=MOE),
    "int4 experts fused": _ct(ints(4, 32), INT4, base=MOE, experts="fused"),
    "int4 down of experts alone": _ct(ints(4, 32), without(INT4, "experts.gate_up"), base=MOE, experts="fused"),
    "int8 groups": _ct(ints(8, 32), packed_integers(8, 32)),
    "int8 rows": _ct(ints(8, None), packed_integers(8, None), base=MOE),
    "int8 w8a8": _ct(ints(8, None), plain_integers(), tokens("int")),
    "int8 w8a8 zero points": _ct(ints(8, None, symmetric=False), plain_integers(is_symmetric=False), tokens("int")),
    "int8 static": _ct(
        ints(8, None), plain_integers(input_scale=0.02), {"num_bits": 8, "type": "int", "strategy": "tensor"}
    ),
    "fp8 dynamic": _ct(fp8("channel"), floats("channel"), tokens("float")),
    "fp8 experts": _ct(fp8("channel"), floats("channel", dtype=F32), tokens("float"), base=MOE),
    "fp8 static": _ct(fp8("tensor"), floats("tensor", static=True), fp8("tensor", dynamic=False)),
    "fp8 blocks": _ct(
        fp8("block", block_structure=[128, 128]), floats("block"), fp8("group", group_size=128, dynamic=True)
    ),
    "fp8 cache scales": _ct(
        fp8("channel"),
        floats("channel"),
        tokens("float"),
        more={f"model.layers.0.self_attn.{name}": torch.tensor([0.02]) for name in ("k_scale", "v_scale")},
    ),
    "nvfp4": _ct(fp4(16), NVFP4, fp4(16) | {"dynamic": "local"}),
    "nvfp4 experts": _ct(fp4(16), NVFP4, base=MOE),
    "mxfp4": _ct(fp4(32), four_bit_floats("mxfp4")),
    "mixed": Variant(
        compressed(
            (["re:.*self_attn.*"], fp8("channel"), tokens("float")),
            (LINEAR, ints(4, 32), None),
            format="mixed-precision",
        ),
        without(mixed("self_attn", floats("channel"), INT4), *KEPT),
    ),
    "awq": Variant({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, without(awq, *KEPT)),
    "gptq v1": _gptq(4, 1),
    "gptq v1 zero points": _gptq(4, 1, sym=False),
    "gptq v1 order": _gptq(4, 1, desc_act=True),
    "gptq v2 zero points": _gptq(4, 2, sym=False),
    "gptq v1 eight bits": _gptq(8, 1, sym=False),
    "autoround": Variant(
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32},
        without(gptq(4, 1), *KEPT),
    ),
    "fp8 of transformers": Variant(
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        without(floats("block", scale_name="weight_scale_inv", dtype=F32), *KEPT),
    ),
    "fp8 of transformers, one scale": Variant(
        {"quant_method": "fp8", "activation_scheme": "static"},
        without(floats("number", dtype=F32, static=True), *KEPT),
    ),
    "modelopt fp8": _modelopt("FP8", floats("number", dtype=F32, static=True)),
    "modelopt nvfp4": _modelopt("NVFP4", without(four_bit_floats("modelopt"), "self_attn"), base=MOE, experts="moe"),
    "modelopt mixed": Variant(
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.language_model.layers.{layer}.{name}": {"quant_algo": algorithm}
                for layer in range(4)
                for name, algorithm in (
                    *((f"self_attn.{part}_proj", "FP8") for part in ("q", "k", "v", "o")),
                    *((f"mlp.{part}_proj", "NVFP4") for part in ("gate", "up", "down")),
                )
            },
        },
        without(mixed("self_attn", floats("number", dtype=F32, static=True), four_bit_floats("modelopt")), *KEPT),
    ),
    "gemma mobile": Variant(
        {
            "quant_method": "gemma",
            "num_bits": 4,
            "quantize_embeddings": True,
            "module_quant_configs": {
                r"\.mlp\.": {"num_bits": 2},
                "per_layer_input_gate$": {"num_bits": 8},
                "embed_tokens_per_layer$": {"num_bits": 4},
                "embed_tokens$|lm_head": {"num_bits": 2},
            },
            "modules_to_not_convert": ["per_layer_model_projection"],
        },
        gemma,
        base="Gemma 4 E4B",
        untied=True,
        more={"model.layers.0.self_attn.k_cache_scale": torch.tensor(0.02)},
    ),
}


def tensors_of(variant: Variant, config: Config) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the quantized file, and those of the same model unquantized."""
    generator = torch.Generator().manual_seed(0)
    stored: dict[str, Tensor] = dict(variant.more)
    dense: dict[str, Tensor] = {}
    for target in tensor_targets(read_model_spec(config)):
        name = target.name if target.name == "lm_head.weight" else f"model.{target.name}"
        parts, numbers = _write_target(variant, target, name, generator)
        stored |= parts
        dense[name] = numbers
    return stored, dense


def _write_target(
    variant: Variant, target: TensorTarget, name: str, generator: torch.Generator
) -> tuple[dict[str, Tensor], Tensor]:
    if len(target.shape) > 1:
        *experts, num_rows, num_inputs = target.shape
        module = name.removesuffix(".weight")
        if not experts:
            found = variant.write(module, (num_rows, num_inputs), generator)
            if found is not None:
                return {f"{module}.{suffix}": tensor for suffix, tensor in found[0].items()}, found[1]
        elif variant.write(module, (num_rows, num_inputs), generator) is not None:
            return _write_experts(variant, module, (experts[0], num_rows, num_inputs), generator)
    values = (torch.randn(target.shape, generator=generator) * target.shape[-1] ** -0.5).to(BF16)
    return {name: values}, values.float()


def _write_experts(
    variant: Variant, module: str, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[dict[str, Tensor], Tensor]:
    parent, _, projection = module.rpartition(".")
    pieces = ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)
    stored: dict[str, Tensor] = {}
    fused: dict[str, list[Tensor]] = {}
    numbers = []
    if variant.experts == "moe":
        parent = parent.replace(".experts", ".moe.experts")
    for expert in range(shape[0]):
        for piece in pieces:
            found = variant.write(f"{parent}.{expert}.{piece}", (shape[1] // len(pieces), shape[2]), generator)
            assert found is not None
            numbers.append(found[1])
            for suffix, tensor in found[0].items():
                stored[f"{parent}.{expert}.{piece}.{suffix}"] = tensor
                fused.setdefault(suffix, []).append(tensor)
    dense = torch.cat(numbers).reshape(shape)
    if variant.experts != "fused":
        return stored, dense
    stacked = {suffix: torch.stack(fused[suffix]) for suffix in ("weight_packed", "weight_scale")}
    return {
        f"{module}_{suffix.removeprefix('weight_')}": tensor.reshape(shape[0], shape[1], -1)
        for suffix, tensor in stacked.items()
    }, dense


def config_of(variant: Variant) -> Config:
    return wide(variant.base) | ({"tie_word_embeddings": False} if variant.untied else {})


def write_variant(folder: Path, variant: Variant) -> dict[str, Tensor]:
    """The quantized checkpoint into `folder`, and the unquantized one beside it. Returns the latter's tensors."""
    config = config_of(variant)
    stored, dense = tensors_of(variant, config)
    contiguous = {name: tensor.contiguous() for name, tensor in stored.items()}
    write_checkpoint(folder / "quantized", config | {"quantization_config": variant.config}, contiguous)
    write_checkpoint(folder / "dense", config, {name: tensor.contiguous() for name, tensor in dense.items()})
    return dense
