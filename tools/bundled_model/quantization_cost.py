"""Measures what --quantization costs a checkpoint of the bundled kind: next-token distributions over dialogues.

python -m tools.bundled_model.quantization_cost FOLDER [--num-tokens 7000]

FOLDER is not quantized (`text_only.py` writes such a model). Dialogues are those of `generate.py`, from a seed that no
training run had. Everything is computed in float32 on a CPU, and every position counts, prompts included.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tokenizers
import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.doctor.quality import Text, hidden_states
from facet.layers.quantized_weight import QuantizedWeight
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from tools.bundled_model.generate import training_examples

SEED = 10**9
_LONGEST = 2048  # tokens of a dialogue


@dataclass(frozen=True, slots=True)
class Row:
    """Of the table."""

    name: str
    quantization: str | None
    rounds_inputs: bool = True
    quantizes_head: bool = False


ROWS = (
    Row("int8, weights only", "int8", rounds_inputs=False),
    Row("int8", "int8"),
    Row("fp8, weights only", "fp8", rounds_inputs=False),
    Row("fp8", "fp8"),
    Row("int4", "int4"),
    Row("int4 --quantize-head", "int4", quantizes_head=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    mean_kl: float  # KL(unquantized || quantized), in nats
    largest_kl: float
    agreement: float  # share of positions with the same most likely token
    logit_error: float  # mean size of the differences

    @property
    def line(self) -> str:
        return f"{self.mean_kl:.5f} | {self.largest_kl:.3f} | {self.agreement:.2%} | {self.logit_error:.3f}"


def dialogues(folder: Path, num_tokens: int) -> list[Text]:
    """Whole ones, until there are at least so many tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts: list[Text] = []
    for example in training_examples(tokenizer, SEED):
        if len(example.token_ids) <= _LONGEST:
            texts.append(Text(example.token_ids, 1))
        if sum(text.num_rows for text in texts) >= num_tokens:
            break
    return texts


def load(folder: Path, row: Row) -> Gemma:
    config = ModelConfig(
        model=str(folder),
        device="cpu",
        dtype="float32",
        quantization=row.quantization,
        quantize_head=row.quantizes_head,
    )
    model = load_model(config).model
    for module in model.modules():
        if isinstance(module, QuantizedWeight) and not row.rounds_inputs:
            module.format = replace(module.format, rounding=None)
    return model


@torch.inference_mode()
def logits(model: Gemma, texts: Sequence[Text]) -> Iterator[Tensor]:
    """Of one text after the other."""
    for text in texts:
        yield model.logits(hidden_states(model, [text]))


@torch.inference_mode()
def measure(model: Gemma, unquantized: Gemma, texts: Sequence[Text]) -> Cost:
    divergences, agreements, errors = [], [], []
    for got, expected in zip(logits(model, texts), logits(unquantized, texts), strict=True):
        ours, theirs = got.log_softmax(dim=-1), expected.log_softmax(dim=-1)
        divergences.append((theirs.exp() * (theirs - ours)).sum(dim=-1))
        agreements.append(got.argmax(dim=-1) == expected.argmax(dim=-1))
        errors.append((got - expected).abs().mean(dim=-1))
    divergence = torch.cat(divergences).double()
    return Cost(
        mean_kl=float(divergence.mean()),
        largest_kl=float(divergence.max()),
        agreement=float(torch.cat(agreements).double().mean()),
        logit_error=float(torch.cat(errors).double().mean()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what quantizing while loading costs.")
    parser.add_argument("folder", type=Path, help="the checkpoint, unquantized")
    parser.add_argument("--num-tokens", type=int, default=7000, help="of dialogues, rounded up to whole ones")
    arguments = parser.parse_args()

    unquantized = load(arguments.folder, Row("unquantized", None))
    texts = dialogues(arguments.folder, arguments.num_tokens)
    print(f"{len(texts)} dialogues, {sum(text.num_rows for text in texts):,} tokens")
    print("| | mean KL | largest KL | same token | mean logit error |")
    for row in ROWS:
        print(f"| {row.name} | {measure(load(arguments.folder, row), unquantized, texts).line} |", flush=True)


if __name__ == "__main__":
    main()
