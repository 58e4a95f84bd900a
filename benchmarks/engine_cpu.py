"""Measures output tokens per second of the engine and of transformers' batched `generate`, alternately in one run.

    python -m benchmarks.engine_cpu                      # concurrency 1, 4 and 16 on a CPU, float32

The same ~100 million parameter, E4B-shaped random model on both sides, greedy, no early end. A round at concurrency c
is c prompts of different lengths answered together: the engine schedules them as a server would, transformers gets
them as one left-padded batch, which is the best it can do. Rounds alternate and the median of each side is taken.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.random_models import SHAPES, write_checkpoint
from facet import LLM, SamplingParams


class FacetSide:
    def __init__(self, folder: Path, num_output_tokens: int) -> None:
        self.llm = LLM(
            str(folder),
            device="cpu",
            skip_tokenizer_init=True,
            show_progress=False,
            enable_prefix_caching=False,  # rounds repeat their prompts; a hit would be no work
            kv_cache_memory_bytes=2 << 30,
        )
        self.sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)

    def run(self, prompts: list[list[int]]) -> list[list[int]]:
        outputs = self.llm.generate(prompts, self.sampling, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]


class TransformersSide:
    def __init__(self, folder: Path, num_output_tokens: int) -> None:
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.num_output_tokens = num_output_tokens

    @torch.inference_mode()
    def run(self, prompts: list[list[int]]) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=self.num_output_tokens,
            min_new_tokens=self.num_output_tokens,
            pad_token_id=0,
        )
        new: list[list[int]] = generated[:, longest:].tolist()
        return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="e4b")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--prompt-tokens", type=int, default=256, help="longest prompt; lengths from half of it up")
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    choose = random.Random(0)
    table = Table(title=f"{options.shape}: output tokens/s, {torch.get_num_threads()} threads")
    for column in ("concurrency", "Facet", "transformers", "ratio", "same tokens"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as name:
        write_checkpoint(Path(name), SHAPES[options.shape])
        sides = [side(Path(name), options.output_tokens) for side in (FacetSide, TransformersSide)]
        for concurrency in options.concurrency:
            lengths = [choose.randrange(options.prompt_tokens // 2, options.prompt_tokens) for _ in range(concurrency)]
            prompts = [[choose.randrange(3, 16000) for _ in range(length)] for length in lengths]
            answers = [side.run(prompts) for side in sides]  # also warms up
            times: list[list[float]] = [[], []]
            for _ in range(options.rounds):
                for index, side in enumerate(sides):
                    start = time.perf_counter()
                    side.run(prompts)
                    times[index].append(time.perf_counter() - start)
            ours, theirs = (statistics.median(column) for column in times)
            num_tokens = concurrency * options.output_tokens
            agreeing = sum(a == b for one, other in zip(*answers, strict=True) for a, b in zip(one, other, strict=True))
            table.add_row(
                str(concurrency),
                f"{num_tokens / ours:.1f}",
                f"{num_tokens / theirs:.1f}",
                f"{theirs / ours:.2f}",
                f"{agreeing}/{num_tokens}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
