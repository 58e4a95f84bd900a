"""Measures output tokens per second on a CPU with quantized and with unquantized weights, alternately in one run.

    python -m benchmarks.quantized_cpu                       # the bundled model and a random one of 500 million weights
    python -m benchmarks.quantized_cpu --model bundled --quantization int8 int4

Activations and unquantized weights are bfloat16 where the processor multiplies that, else float32, unless --dtype says
otherwise; the title says which. A round at concurrency c is c prompts answered together, greedily, with no early end.
Rounds alternate between all sides, and the median of each is taken. Products with int8 are integers on a processor with
VNNI or AMX; with int4, few bfloat16 rows are multiplied by codes on one with AVX2. Elsewhere tiles are brought to
float32, which is slower than no quantization: the processor decides, so measure your own.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.random_models import SHAPES
from facet import LLM, SamplingParams
from facet.bundled_model import find_bundled_model
from facet.model.resolving import resolve_dtype
from tools.bundled_model.text_only import write_text_model

# E4B's structure: 547 million weights, of which 472 million are in matrices that are quantized, in int4 481 million.
LARGE: dict[str, Any] = SHAPES["e4b"] | dict(
    hidden_size=1280,
    intermediate_size=5120,
    num_hidden_layers=20,
    head_dim=256,
    global_head_dim=512,
    num_kv_shared_layers=8,
    hidden_size_per_layer_input=128,
)
UNQUANTIZED = "unquantized"


class Side:
    """An engine with weights of one kind."""

    def __init__(self, model: str, quantization: str, options: argparse.Namespace, load_format: str) -> None:
        self.llm = LLM(
            model,
            device="cpu",
            dtype=options.dtype,
            load_format=load_format,
            quantization=None if quantization == UNQUANTIZED else quantization,
            skip_tokenizer_init=True,
            show_progress=False,
            enable_prefix_caching=False,  # rounds repeat their prompts; a hit would be no work
            kv_cache_memory_bytes=256 << 20,
            max_model_len=1024,
        )
        self.sampling = SamplingParams(temperature=0.0, max_tokens=options.output_tokens, ignore_eos=True)

    def seconds(self, prompts: list[list[int]]) -> float:
        start = time.perf_counter()
        self.llm.generate(prompts, self.sampling, use_tqdm=False)
        return time.perf_counter() - start


def measure(title: str, model: str, load_format: str, options: argparse.Namespace) -> Table:
    kinds = [UNQUANTIZED, *options.quantization]
    sides = {kind: Side(model, kind, options, load_format) for kind in kinds}
    choose = random.Random(0)
    dtype = resolve_dtype(options.dtype, torch.bfloat16, torch.device("cpu"))
    table = Table(title=f"{title}: output tokens/s in {str(dtype).removeprefix('torch.')}")
    for column in ("concurrency", *kinds, *(f"{kind} / {UNQUANTIZED}" for kind in options.quantization)):
        table.add_column(column, justify="right")
    for concurrency in options.concurrency:
        lengths = [choose.randrange(options.prompt_tokens // 2, options.prompt_tokens) for _ in range(concurrency)]
        prompts = [[choose.randrange(20, 400) for _ in range(length)] for length in lengths]
        for side in sides.values():
            side.seconds(prompts[:1])  # warms up
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind, side in sides.items():
                times[kind].append(side.seconds(prompts))
        num_tokens = concurrency * options.output_tokens
        speed = {kind: num_tokens / statistics.median(times[kind]) for kind in kinds}
        ratios = (f"{speed[kind] / speed[UNQUANTIZED]:.2f}" for kind in options.quantization)
        table.add_row(str(concurrency), *(f"{speed[kind]:.1f}" for kind in kinds), *ratios)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("bundled", "large"), nargs="+", default=["bundled", "large"])
    parser.add_argument("--quantization", choices=("int8", "int4", "fp8"), nargs="+", default=["int8"])
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-tokens", type=int, default=128, help="longest prompt; lengths from half of it up")
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LARGE), encoding="utf-8")
        bundled = Path(folder) / "bundled"
        write_text_model(find_bundled_model(), bundled)  # some matrices of the bundled one are quantized already
        models = {"bundled": (str(bundled), "auto"), "large": (folder, "dummy")}
        for name in options.model:
            Console().print(measure(name, *models[name], options))


if __name__ == "__main__":
    main()
