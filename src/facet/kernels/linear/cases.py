"""Shapes, inputs and tolerances for checking and timing matrix products."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=5e-5, relative=1e-4, why="float32 sums of up to 21504 products in another order")
HALF = Tolerance(
    absolute=2e-2,
    relative=2**-6,
    why="sums in another order round differently to 8 bits: a gate, its gelu and the product, one step each",
)
TOLERANCES = {torch.float32: FLOAT32, torch.float16: HALF, torch.bfloat16: HALF}


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    num_out: int
    num_in: int
    operation: Literal["linear", "geglu_linear", "gated_input_linear"] = "linear"

    def inputs(self, num_rows: int, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> tuple[Tensor, Tensor]:
        """x and weight. Sums come out near one, as after a norm and a trained weight."""
        generator = torch.Generator(device).manual_seed(seed)
        # First, since weights may be read before the launch just before is over.
        weight = torch.randn(self.num_out, self.num_in, generator=generator, device=device, dtype=dtype)
        weight.mul_(self.num_in**-0.5)
        x = torch.randn(num_rows, self.num_in, generator=generator, device=device).to(dtype)
        return x, weight


E4B = (
    Shape("E4B gate_up", 20480, 2560, "geglu_linear"),
    Shape("E4B down", 2560, 10240),
    Shape("E4B qkv sliding", 3072, 2560),
    Shape("E4B qkv global", 6144, 2560),
    Shape("E4B q sliding", 2048, 2560),
    Shape("E4B q global", 4096, 2560),
    Shape("E4B o sliding", 2560, 2048),
    Shape("E4B o global", 2560, 4096),
    Shape("E4B per-layer gate", 256, 2560, "gated_input_linear"),
    Shape("E4B per-layer projection", 2560, 256),
    Shape("E4B lm_head", 262144, 2560),
)
# Layers of E2B that share keys have twice the inner width.
SMALL = (
    Shape("E2B gate_up", 12288, 1536, "geglu_linear"),
    Shape("E2B gate_up wide", 24576, 1536, "geglu_linear"),
    Shape("E2B down", 1536, 6144),
    Shape("E2B down wide", 1536, 12288),
    Shape("E2B qkv sliding", 2560, 1536),
    Shape("E2B qkv global", 5120, 1536),
)
MEDIUM = (
    Shape("12B gate_up", 30720, 3840, "geglu_linear"),
    Shape("12B down", 3840, 15360),
    Shape("12B qkv sliding", 8192, 3840),
    Shape("12B qkv global", 8704, 3840),
    Shape("12B o sliding", 3840, 4096),
    Shape("12B o global", 3840, 8192),
)
LARGE = (
    Shape("31B gate_up", 43008, 5376, "geglu_linear"),
    Shape("31B down", 5376, 21504),
    Shape("31B qkv sliding", 16384, 5376),
    Shape("31B qkv global", 18432, 5376),
    Shape("31B o sliding", 5376, 8192),
    Shape("31B o global", 5376, 16384),
    Shape("31B lm_head", 262144, 5376),
)
SPARSE = (
    Shape("26B-A4B gate_up", 4224, 2816, "geglu_linear"),
    Shape("26B-A4B down", 2816, 2112),
    Shape("26B-A4B qkv sliding", 8192, 2816),
    Shape("26B-A4B qkv global", 9216, 2816),
    Shape("26B-A4B o sliding", 2816, 4096),
    Shape("26B-A4B o global", 2816, 8192),
    Shape("26B-A4B router", 128, 2816),
    Shape("26B-A4B lm_head", 262144, 2816),
)
# Gemma 3n E4B.
NANO = (
    Shape("3n gate_up", 32768, 2048, "geglu_linear"),
    Shape("3n down", 2048, 16384),
    Shape("3n qkv", 3072, 2048),
    Shape("3n o", 2048, 2048),
    Shape("3n per-layer gate", 256, 2048, "gated_input_linear"),
    Shape("3n per-layer projection", 2048, 256),
    Shape("3n LAuReL down", 64, 2048),
    Shape("3n LAuReL up", 2048, 64),
)
SERVED = (*SMALL, *E4B, *MEDIUM, *LARGE, *SPARSE, *NANO)
# Nothing a multiple of anything; fewer inputs than a tile has; one output.
ODD = (Shape("odd", 42, 100), Shape("narrow", 6, 8), Shape("one gate", 2, 33))
