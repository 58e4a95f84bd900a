"""The lines that are printed when an engine starts, beside those of its parts: what this machine makes of a model."""

from collections.abc import Iterable

import torch
from torch import nn

from facet.config import EngineConfig
from facet.engine.cpu_threads import BYTES_PER_THREAD
from facet.kernels.quantized import eight_bits
from facet.layers.cpu_weights import PackedInt4Weight
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight_kinds import choose_kind
from facet.model.gemma import Gemma
from facet.model.resolving import dtype_of_config, resolve_dtype

WIDENED = (
    "This processor has no bfloat16 products: weights are held in float32. --dtype bfloat16 takes half the memory, but "
    "is many times slower."
)
WIDENED_BESIDE_4_BITS = (
    "This processor has no bfloat16 products: weights that are not quantized are held in float32. But bfloat16 rows "
    "are multiplied by 4-bit codes as they are: --dtype bfloat16 answers several times faster."
)

BATCH_INVARIANT_LINE = "Batch-invariant: answers do not depend on other requests. --no-batch-invariant turns it off."
NOT_BATCH_INVARIANT_LINE = (
    "Not batch-invariant: other requests can change an answer's last bits. --batch-invariant turns it on."
)
NO_FP8_PRODUCTS = (
    "This GPU is older than those that multiply FP8 codes as they are: their values are multiplied in the type of "
    "activations. They save memory, but prompts are no faster. --quantization int8 is multiplied as codes here."
)
NO_KERNELS = (
    "Some quantized weights have no GPU kernels: they save memory, but steps are slow and not captured as graphs."
)


def arithmetic_line(*, is_batch_invariant: bool) -> str:
    return BATCH_INVARIANT_LINE if is_batch_invariant else NOT_BATCH_INVARIANT_LINE


def fp8_lines(weights: Iterable[nn.Module], device: torch.device) -> tuple[str, ...]:
    """What to say of FP8 on this device."""
    formats = {weight.format for weight in weights if isinstance(weight, QuantizedWeight)}
    is_too_old = any(format.codes == "fp8" and not eight_bits.runs_on(device, format) for format in formats)
    return (NO_FP8_PRODUCTS,) if device.type == "cuda" and is_too_old else ()


def threads_line(num_threads: int) -> str:
    threads = "1 thread" if num_threads == 1 else f"{num_threads} threads"
    rule = f"one for every {BYTES_PER_THREAD >> 20} MiB of weights, as far as cores go"
    return f"Computing with {threads}: {rule}. OMP_NUM_THREADS changes it."


def widened_line(config: EngineConfig, model: Gemma) -> str | None:
    """What to say where bfloat16 is computed in float32, since the processor has no products of it."""
    dtype, device = model.placement.dtype, model.placement.device
    stored = dtype_of_config(model.spec)
    if config.dtype != "auto" or dtype == stored or resolve_dtype("auto", stored, device) != dtype:
        return None
    quantized = [module.matrix for module in model.modules() if isinstance(module, QuantizedWeight)]
    are_packed = (
        choose_kind(each.format, (*each.codes.shape[:-1], each.num_inputs), dtype=stored, device=device)
        is PackedInt4Weight
        for each in quantized
    )
    return WIDENED_BESIDE_4_BITS if any(are_packed) else WIDENED
