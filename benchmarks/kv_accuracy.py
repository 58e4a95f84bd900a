"""Measures how a KV dtype changes the logits: KL divergence and top-1 agreement against bfloat16.

    python -m benchmarks.kv_accuracy                  # tiny models and random ones of about 100 million parameters
    python -m benchmarks.kv_accuracy FOLDER           # a checkpoint of your own

All else is float32, so that the dtype is all that differs. Every position of a prompt of 2,000 random tokens counts;
its keys and values are written and read like those of any request. The tables of docs/kv-memory.md are printed here.

The models of 100 million parameters have the head dims, windows, shared keys, experts and values that are keys of the
family they are named after. Their query norms are set so that scores have a deviation of two: attention that is
neither flat nor one-hot, as in a trained model. A trained model has outliers that random ones have not.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.kv_dtypes import KV_DTYPES, choose_kv_dtypes
from facet.kv_layout import make_kv_layout
from facet.layers.attention import Attention
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma, num_parameters
from facet.model.loader import load_model
from facet.runner.batch import SequenceRows, make_batch_of
from tests.published_configs import pattern, text_only
from tests.tiny_checkpoints import write_config
from tests.tiny_models import BASE_NAMES, make_tiny_model

FAMILIES = ("Gemma 4 E2B", "Gemma 4 E4B", "Gemma 4 12B", "Gemma 4 26B-A4B", "Gemma 4 31B", "Gemma 3 4B", "Gemma 3n E4B")
BASELINE = "bfloat16"
CHOICES = (*(name for name in KV_DTYPES if name != BASELINE), "global=int8_per_token_head,sliding=bfloat16")
NUM_POSITIONS, CHUNK = 2000, 500
SCORE_DEVIATION = 2.0


@dataclass(frozen=True)
class Distance:
    """Of one dtype's next-token distributions from the baseline's, over all positions."""

    divergence: float  # mean KL(baseline || dtype), in nats
    agreement: float  # share of positions with the same likeliest token


def about_100_million(name: str) -> dict[str, Any]:
    """A published config, narrower and shallower."""
    config = text_only(name)
    num_sliding = 4 if name == "Gemma 4 E2B" or "3n" in name else 5
    num_layers = 2 * (num_sliding + 1)
    sizes: dict[str, Any] = dict(
        hidden_size=640,
        num_hidden_layers=num_layers,
        layer_types=pattern(num_sliding, num_layers),
        intermediate_size=2560,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=256,
        sliding_window=512,
        vocab_size=16384,
        max_position_embeddings=4096,
    )
    if config.get("attention_k_eq_v"):
        sizes["num_global_key_value_heads"] = 1
    if name == "Gemma 4 31B":
        sizes |= dict(num_attention_heads=8, num_key_value_heads=4, num_global_key_value_heads=2)
    if config.get("num_kv_shared_layers"):
        sizes["num_kv_shared_layers"] = num_sliding + 1
    if config.get("hidden_size_per_layer_input"):
        sizes |= dict(hidden_size_per_layer_input=64, vocab_size_per_layer_input=16384)
    if config.get("enable_moe_block"):
        sizes |= dict(num_experts=16, top_k_experts=4, moe_intermediate_size=160)
    if "3n" in name:
        sizes |= dict(laurel_rank=32, activation_sparsity_pattern=[0.95] * 4 + [0.0] * (num_layers - 4))
    return config | sizes


def random_model(name: str) -> Gemma:
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), about_100_million(name))
        model = load(Path(folder), load_format="dummy")
    for attention in model.layers.modules():
        if isinstance(attention, Attention):
            spec = attention.layer
            attention.query_norm.weight.data.fill_(SCORE_DEVIATION / (spec.attention_scale * spec.head_dim**0.5))
    return model


def tiny_model(name: str) -> Gemma:
    with tempfile.TemporaryDirectory() as folder:
        return load(make_tiny_model(name, Path(folder)).folder)


def load(folder: Path, **more: Any) -> Gemma:
    return load_model(ModelConfig(model=str(folder), device="cpu", dtype="float32", **more)).model


@torch.inference_mode()
def log_probabilities(model: Gemma, token_ids: Sequence[int], choice: str) -> Iterator[Tensor]:
    """[CHUNK, vocab] each, of every position in turn."""
    dtypes = choose_kv_dtypes(model.spec, asked=choice, model_dtype="float32")
    layout = make_kv_layout(model.spec, dtype=dtypes)
    counts = [-(-len(token_ids) // group.tokens_per_block) for group in layout.groups]
    pages = iter(range(1, 1 + sum(counts)))
    tables = tuple(tuple(next(pages) for _ in range(count)) for count in counts)
    arena = KVArena(layout, 1 + sum(counts), "cpu")
    for start in range(0, len(token_ids), CHUNK):
        chunk = token_ids[start : start + CHUNK]
        rows = SequenceRows(token_ids=chunk, num_computed=start, block_tables=tables, num_logit_rows=len(chunk))
        batch = make_batch_of([rows], torch.device("cpu"), skip_upper=False)
        yield model.logits(model(batch, arena)).log_softmax(dim=-1)


def distances(model: Gemma, choices: Sequence[str]) -> dict[str, Distance]:
    generator = torch.Generator().manual_seed(0)
    token_ids = [2, *torch.randint(3, model.spec.vocab_size - 10, (NUM_POSITIONS - 1,), generator=generator).tolist()]
    baseline = [chunk.clone() for chunk in log_probabilities(model, token_ids, BASELINE)]
    found = {}
    for choice in choices:
        divergence, num_equal = 0.0, 0
        for expected, got in zip(baseline, log_probabilities(model, token_ids, choice), strict=True):
            divergence += float((expected.exp() * (expected - got)).sum(dim=-1).double().sum())
            num_equal += int((expected.argmax(dim=-1) == got.argmax(dim=-1)).sum())
        found[choice] = Distance(divergence / NUM_POSITIONS, num_equal / NUM_POSITIONS)
    return found


def print_table(title: str, models: dict[str, dict[str, Distance]]) -> None:
    print(f"\n{title}: mean KL divergence in nats / same likeliest token\n")
    print(f"| KV dtype | {' | '.join(models)} |\n|---|{'---|' * len(models)}")
    for choice in CHOICES:
        cells = (f"{found[choice].divergence:.1e} / {found[choice].agreement:.1%}" for found in models.values())
        print(f"| `{choice}` | {' | '.join(cells)} |")


def check(models: dict[str, dict[str, Distance]]) -> list[str]:
    """Models on which a scale per token and head does not pay."""
    return [
        name
        for name, found in models.items()
        if found["int8_per_token_head"].divergence >= found["fp8_e4m3"].divergence
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, help="checkpoints to measure instead")
    options = parser.parse_args()
    groups: dict[str, dict[str, Callable[[], Gemma]]]
    if options.folders:
        groups = {"Checkpoints": {folder.name: partial(load, folder) for folder in options.folders}}
    else:
        groups = {
            "Tiny models": {name: partial(tiny_model, name) for name in BASE_NAMES},
            "Random models of about 100 million parameters": {name: partial(random_model, name) for name in FAMILIES},
        }
    worse = []
    for title, makers in groups.items():
        models = {}
        for name, make in makers.items():
            model = make()
            print(f"{name}: {num_parameters(model) / 1e6:.1f} million parameters", file=sys.stderr, flush=True)
            models[name] = distances(model, CHOICES)
        print_table(title, models)
        worse += check(models)
    print(
        f"\nint8_per_token_head is closer than fp8_e4m3 on all models: {'no: ' + ', '.join(worse) if worse else 'yes'}"
    )
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
