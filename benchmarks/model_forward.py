"""Measures tokens per second of Facet's forward pass and of transformers', on the same random model, alternately.

    python -m benchmarks.model_forward                  # prefill of 512 tokens, decode of a batch of 16, float32, CPU
    python -m benchmarks.model_forward --shape 31b      # another family's shape

The model has about 100 million parameters and the structure of the family it is named after. Both sides get the
same weights and the same tokens. The figure to read is the ratio: both are timed in turn, round after round, and the
median of each is taken, so that whatever else the machine does falls on both.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.random_models import SHAPES, write_checkpoint
from facet.config import ModelConfig
from facet.kv_layout import make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma, num_parameters
from facet.model.loader import load_model
from facet.runner.batch import SequenceRows, make_batch_of


class FacetSide:
    """The same two loads through Facet: pages, block tables and all."""

    name = "Facet"

    def __init__(self, folder: Path) -> None:
        loaded = load_model(ModelConfig(model=str(folder), device="cpu"))
        self.model: Gemma = loaded.model
        self.layout = make_kv_layout(loaded.spec, dtype="float32")

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> Callable[[], torch.Tensor]:
        """All layers for all rows, as the other side computes; logits of the last row."""
        arena, tables = self._pages(1, len(prompt))
        rows = SequenceRows(token_ids=prompt, num_computed=0, block_tables=tables[0], num_logit_rows=1)
        return lambda: self._run([rows], arena, skip_upper=False)

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]]) -> Callable[[], torch.Tensor]:
        arena, tables = self._pages(len(prompts), len(prompts[0]) + 1)
        for prompt, table in zip(prompts, tables, strict=True):
            rows = SequenceRows(token_ids=prompt, num_computed=0, block_tables=table, num_logit_rows=1)
            self._run([rows], arena, skip_upper=True)
        step = [
            SequenceRows(token_ids=[7], num_computed=len(prompt), block_tables=table, num_logit_rows=1)
            for prompt, table in zip(prompts, tables, strict=True)
        ]
        return lambda: self._run(step, arena, skip_upper=True)

    def _pages(self, num_sequences: int, num_tokens: int) -> tuple[KVArena, list[tuple[list[int], ...]]]:
        counts = [-(-num_tokens // group.tokens_per_block) for group in self.layout.groups]
        pages = iter(range(1, 1 + num_sequences * sum(counts)))
        tables = [tuple([next(pages) for _ in range(count)] for count in counts) for _ in range(num_sequences)]
        return KVArena(self.layout, 1 + num_sequences * sum(counts), "cpu"), tables

    @torch.inference_mode()
    def _run(self, sequences: list[SequenceRows], arena: KVArena, *, skip_upper: bool) -> torch.Tensor:
        batch = make_batch_of(sequences, torch.device("cpu"), skip_upper=skip_upper)
        return self.model.logits(self.model(batch, arena))


class TransformersSide:
    """The same two loads through transformers, with its fastest attention on a CPU."""

    name = "transformers"

    def __init__(self, folder: Path) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()

    def prefill(self, prompt: list[int]) -> Callable[[], torch.Tensor]:
        ids = torch.tensor([prompt])
        return lambda: self._run(input_ids=ids, use_cache=True).logits[0]

    def decode(self, prompts: list[list[int]]) -> Callable[[], torch.Tensor]:
        """One step from a cache that is cropped back after each, so that every step sees the same context."""
        cache = self._run(input_ids=torch.tensor(prompts), use_cache=True).past_key_values
        kept = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        step, length = torch.full((len(prompts), 1), 7), len(prompts[0])

        def run() -> torch.Tensor:
            for layer, (keys, values) in zip(cache.layers, kept, strict=True):
                layer.keys, layer.values = keys, values
                if hasattr(layer, "cumulative_length"):
                    layer.cumulative_length = length
            logits: torch.Tensor = self._run(input_ids=step, past_key_values=cache, use_cache=True).logits[:, -1]
            return logits

        return run

    @torch.inference_mode()
    def _run(self, **inputs: Any) -> Any:
        return self.model(logits_to_keep=1, **inputs)


def measure(calls: list[Callable[[], torch.Tensor]], num_rounds: int) -> list[float]:
    """Median seconds of each call, taken in turn. The first round warms up and is not counted."""
    times: list[list[float]] = [[] for _ in calls]
    for round_index in range(num_rounds + 1):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if round_index:
                times[index].append(time.perf_counter() - start)
    return [statistics.median(column) for column in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="e4b")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prompt (default: 512)")
    parser.add_argument("--batch", type=int, default=16, help="sequences decoding together (default: 16)")
    parser.add_argument("--context", type=int, default=256, help="tokens each of them has (default: 256)")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(folder, SHAPES[options.shape])
        sides = (FacetSide(folder), TransformersSide(folder))
        generator = torch.Generator().manual_seed(0)
        prompt = torch.randint(3, 16000, (options.prefill,), generator=generator).tolist()
        prompts = torch.randint(3, 16000, (options.batch, options.context), generator=generator).tolist()
        loads = {
            f"prefill {options.prefill}": ([side.prefill(prompt) for side in sides], options.prefill),
            f"decode {options.batch} x 1 at {options.context}": (
                [side.decode(prompts) for side in sides],
                options.batch,
            ),
        }
        table = Table(
            title=f"{options.shape}: {num_parameters(sides[0].model) / 1e6:.0f} M parameters, float32, "
            f"{torch.get_num_threads()} threads, tokens/s"
        )
        for column in ("load", "Facet", "transformers", "ratio", "largest logit difference"):
            table.add_column(column, justify="right")
        for load, (calls, num_tokens) in loads.items():
            difference = float((calls[0]() - calls[1]()).abs().max())
            ours, theirs = measure(calls, options.rounds)
            table.add_row(
                load,
                f"{num_tokens / ours:,.0f}",
                f"{num_tokens / theirs:,.0f}",
                f"{theirs / ours:.2f}",
                f"{difference:.1e}",
            )
        Console().print(table)


if __name__ == "__main__":
    main()
