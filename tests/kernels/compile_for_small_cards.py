"""Compiles what a GPU with little shared memory runs, without one, and prints how much each kernel takes.

    TRITON_INTERPRET=0 python -m tests.kernels.compile_for_small_cards 89 101376

Kernels are written down where they would be launched, with the shapes of real layers, and then compiled for a card of
the given compute capability, as if its programs had the given bytes. One line of JSON for each kernel.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import driver
from triton.runtime.jit import KernelInterface, create_function_from_signature

from facet.kernels import shared_memory
from facet.kernels.geglu.reference import geglu
from facet.kernels.linear import triton as products
from facet.kernels.linear.config import choose_chain, choose_config
from facet.kernels.low_rank import triton as low_rank
from facet.kernels.low_rank.cases import Case as Adapters
from facet.kernels.moe import triton as experts
from facet.kernels.paged_attention import cases
from facet.kernels.paged_attention import gpu as attention
from facet.kernels.paged_attention.cache import LayerCache
from facet.kernels.paged_attention.decode import tuning as decode_tuning
from facet.kernels.quantized import eight_bits, few_rows, int4, int8_groups
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int4.dequantize import dequantize
from facet.kernels.quantized.int8_groups.dequantize import dequantize as dequantize_int8
from facet.kernels.quantized.widen import widen

SLIDING = cases.Case(
    name="E4B sliding", num_heads=8, num_kv_heads=2, head_dim=256, window=512, tokens_per_block=16, sequences=()
)
GLOBAL = replace(SLIDING, name="E4B global", head_dim=512, window=None, tokens_per_block=40)
SHARED = replace(GLOBAL, name="31B global", num_heads=32, num_kv_heads=4, num_rotated_pairs=64)
NARROW = replace(SLIDING, name="Gemma 3 27B", num_heads=32, num_kv_heads=16, head_dim=128, window=1024)
# Answers, and a prompt.
BATCHES = (((1, 600),), ((64, 600),))


def attend(case: cases.Case) -> None:
    for sequences in BATCHES:
        batch = replace(case, sequences=sequences)
        inputs = batch.inputs(torch.bfloat16)
        for make_plan in (attention.plan_on_gpu, attention.plan_invariant_on_gpu):
            batch.attend(inputs, make_plan)
    answers = replace(case, sequences=BATCHES[0])
    inputs = answers.inputs(torch.bfloat16)
    answers.attend(replace(inputs, cache=in_eight_bits(inputs.cache)), attention.plan_on_gpu)


def in_eight_bits(cache: LayerCache) -> LayerCache:
    codes, scales = torch.zeros(cache.keys.shape, dtype=torch.int8), torch.ones(cache.keys.shape[:3])
    values, value_scales = (None, None) if cache.is_shared else (codes, scales)
    return LayerCache(keys=codes, values=values, key_scales=scales, value_scales=value_scales)


def multiply() -> None:
    for num_out, num_in in ((20480, 2560), (2560, 10240)):
        weight = torch.empty(num_out, num_in, dtype=torch.bfloat16)
        for num_rows in (8, 32, 64):
            x = torch.empty(num_rows, num_in, dtype=torch.bfloat16)
            configs = (choose_config(num_rows, num_out, num_in), choose_chain(num_rows, num_out, num_in, 2))
            for config in configs:
                if config is not None:
                    products.linear(x, weight, config)


def multiply_codes() -> None:
    for name in ("int8 rows", "int8 token"):
        case = Case(format=FORMATS[name], num_out=4096, num_in=2560)
        matrix = case.matrix()
        for num_rows in (1, 8, 64, 200):
            eight_bits.linear(case.inputs(num_rows, torch.bfloat16), matrix, eight_bits.choose_config)


def multiply_values() -> None:
    for name in ("uint4 minimums", "int8 groups", "fp8 blocks", "fp4 powers", "fp4 coarse"):
        case = Case(format=FORMATS[name], num_out=4096, num_in=2560)
        matrix = case.matrix()
        for num_rows in (1, 64):
            few_rows.linear(case.inputs(num_rows, torch.bfloat16), matrix)
        widen(matrix, torch.bfloat16)
        if int4.can_shuffle(case.format, case.num_out):
            dequantize(int4.shuffle(matrix), torch.bfloat16)
        if int8_groups.can_shuffle(case.format, (case.num_out, case.num_in)):
            dequantize_int8(int8_groups.shuffle(matrix), torch.bfloat16)


def run_experts() -> None:
    gate_up, down = torch.empty(8, 2 * 704, 2816), torch.empty(8, 2816, 704)
    for num_rows in (40, 400):
        x = torch.empty(num_rows, 2816, dtype=torch.bfloat16)
        chosen = torch.zeros(num_rows, 8, dtype=torch.int64)
        experts.run_experts(x, torch.empty(num_rows, 8), chosen, gate_up.bfloat16(), down.bfloat16())


def add_low_rank() -> None:
    bf16, f32 = torch.bfloat16, torch.float32
    for num_rows, rank, dtype in ((40, 16, bf16), (40, 512, bf16), (2000, 512, bf16), (40, 512, f32)):
        case = Adapters(num_inputs=2560, parts=(512, 512), rank=rank, num_adapters=2)
        x, product = case.rows(num_rows, dtype)
        numbers = torch.ones(num_rows, dtype=torch.int32)
        addition = low_rank.narrow_rows(x, numbers, case.matrices(dtype), first=0, end=product.shape[1])
        addition.add_to(product)
        addition.geglu_of(product, geglu)


ROOMS: dict[str, Callable[[], None]] = {
    **{case.name: lambda case=case: attend(case) for case in (SLIDING, GLOBAL, SHARED, NARROW)},  # type: ignore[misc]
    "products": multiply,
    "products of codes": multiply_codes,
    "products of values": multiply_values,
    "experts": run_experts,
    "adapters": add_low_rank,
}


def shared_bytes_of(kernel: Any, args: tuple[Any, ...], given: dict[str, Any], target: GPUTarget) -> int:
    backend = make_backend(target)
    constants = {name: value for name, value in given.items() if name.isupper()}
    options = {name: value for name, value in given.items() if not name.isupper() and name != "launch_pdl"}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, parsed = bind(*args, **constants, **options, sanitize_overflow=False)
    parsed, signature, constexprs, attributes = kernel._pack_args(backend, options, bound, specialization, parsed)
    source = ASTSource(kernel, signature, constexprs, attributes)
    return _lowered(source, target, backend, parsed)["shared"]


def _lowered(source: ASTSource, target: GPUTarget, backend: Any, options: Any) -> dict[str, Any]:
    """What is known of a kernel once its shared memory is: `triton.compile` without the assembler, which takes half of
    the time."""
    context, stages = ir.context(), {}  # type: ignore[var-annotated]
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(target, options, functions, backend.get_module_map(), context)
    backend.add_stages(stages, options, source.language)
    metadata = {"target": target, **options.__dict__}
    for name in ("ttir", "ttgir", "llir"):
        module = stages[name](module, metadata)
    return metadata


def main() -> None:
    target, room = GPUTarget("cuda", int(sys.argv[1]), 32), int(sys.argv[2])
    driver.set_active(SimpleNamespace(get_current_target=lambda: target))  # kernels ask it
    launched: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def write_down(kernel: Any, _grid: object) -> Callable[..., None]:
        return lambda *args, **given: launched.append((kernel, args, given))

    KernelInterface.__getitem__ = write_down  # type: ignore[method-assign]
    for module in (shared_memory, attention):
        module.shared_bytes = lambda _device: room  # type: ignore[attr-defined]
    assert not decode_tuning.has_room(torch.device("cpu"))
    compiled = set()
    for name, run in ROOMS.items():
        run()
        for kernel, args, given in launched:
            key = (kernel.fn.__name__, json.dumps(given, sort_keys=True, default=str))
            if key not in compiled:
                compiled.add(key)
                found = shared_bytes_of(kernel, args, given, target)
                print(json.dumps({"room": name, "kernel": kernel.fn.__name__, "shared": found}), flush=True)
        launched.clear()


if __name__ == "__main__":
    main()
