"""Generates training examples without end: dialogues as token ids, and which of them the model must produce.

python -m tools.bundled_model.generate --num 5          prints some dialogues
python -m tools.bundled_model.generate --num 2000 --statistics
"""

import argparse
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import tokenizers

from tools.bundled_model.dialogues.conversation import Dialogue
from tools.bundled_model.dialogues.mix import dialogues
from tools.bundled_model.dialogues.rendering import render
from tools.bundled_model.dialogues.words import Lexicon, Source
from tools.bundled_model.stream import PlacedPicture
from tools.bundled_model.tokenizer import DEFAULT_SEED, build_tokenizer


@dataclass(frozen=True, slots=True)
class TrainingExample:
    token_ids: tuple[int, ...]
    is_target: tuple[bool, ...]  # tokens the model must produce: thoughts, calls, answers, what ends them
    pictures: tuple[PlacedPicture, ...] = ()


def training_examples(tokenizer: tokenizers.Tokenizer, seed: int) -> Iterator[TrainingExample]:
    """Endless; the same seed gives the same examples. Works on one core: for more, start processes with own seeds."""
    return (encode_dialogue(tokenizer, dialogue) for dialogue in training_dialogues(seed))


def training_dialogues(seed: int) -> Iterator[Dialogue]:
    """The dialogues behind `training_examples`."""
    return dialogues(Source(random.Random(seed), Lexicon.of(held_out=False), is_inventive=True))


def encode_dialogue(tokenizer: tokenizers.Tokenizer, dialogue: Dialogue) -> TrainingExample:
    """Encodes the parts separately and joins them: rendering.py cuts only where that makes no difference."""
    token_ids: list[int] = []
    is_target: list[bool] = []
    for piece in render(dialogue):
        # Not the library's batch call, which would start a thread on every core in every process.
        ids = tokenizer.encode(piece.text, add_special_tokens=False).ids
        token_ids += ids
        is_target += [piece.is_target] * len(ids)
    return TrainingExample(tuple(token_ids), tuple(is_target))


def _print_statistics(tokenizer: tokenizers.Tokenizer, seed: int, num: int) -> None:
    num_tokens: Counter[str] = Counter()
    num_targets: Counter[str] = Counter()
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    begin = time.perf_counter()
    for dialogue in itertools.islice(training_dialogues(seed), num):
        example = encode_dialogue(tokenizer, dialogue)
        lengths[dialogue.kind].append(len(example.token_ids))
        num_tokens[dialogue.kind] += len(example.token_ids)
        num_targets[dialogue.kind] += sum(example.is_target)
    seconds = time.perf_counter() - begin
    print(f"{'kind':18}{'dialogues':>10}{'of tokens':>11}{'mean':>8}{'longest':>9}{'targets':>9}")
    for kind, all_lengths in sorted(lengths.items(), key=lambda item: -len(item[1])):
        mean = num_tokens[kind] / len(all_lengths)
        print(
            f"{kind:18}{len(all_lengths) / num:>10.1%}{num_tokens[kind] / num_tokens.total():>11.1%}{mean:>8.0f}"
            f"{max(all_lengths):>9}{num_targets[kind] / len(all_lengths):>9.0f}"
        )
    print(
        f"{num_tokens.total() / num:.0f} tokens per dialogue, {num_targets.total() / num_tokens.total():.1%} of them "
        f"targets; {num_tokens.total() / seconds:,.0f} tokens per second"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Print made-up dialogues, or count them.")
    parser.add_argument("--num", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--statistics", action="store_true", help="kinds, lengths and speed instead of dialogues")
    arguments = parser.parse_args()
    if arguments.statistics:
        _print_statistics(build_tokenizer(DEFAULT_SEED), arguments.seed, arguments.num)
        return
    for dialogue in itertools.islice(training_dialogues(arguments.seed), arguments.num):
        # Targets stand between double angle brackets.
        shown = "".join(f"⟪{piece.text}⟫" if piece.is_target else piece.text for piece in render(dialogue))
        print(f"=== {dialogue.kind}\n{shown}\n")


if __name__ == "__main__":
    main()
