"""Trains the drafter of the bundled model, on a CPU, in minutes.

    python -m tools.bundled_model.drafting.train src/facet/bundled

The model reads dialogues, which takes half of the time; what it computed of them is kept, and the drafter is trained on
that several times over. It is written into `assistant` inside the model's folder.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from tools.bundled_model.dialogue_source import DialogueSource
from tools.bundled_model.drafting.export import FOLDER, export_drafter, round_as_stored
from tools.bundled_model.drafting.lessons import Lesson, make_lessons
from tools.bundled_model.drafting.model import Drafter
from tools.bundled_model.drafting.shape import make_drafter_config, make_drafter_spec
from tools.bundled_model.drafting.trainer import acceptance, train
from tools.bundled_model.export import bytes_in
from tools.bundled_model.model import Decoder
from tools.bundled_model.shape import make_spec
from tools.bundled_model.text_only import text_config, text_tensors

NUM_DRAFTS = 4  # that are trained, from every place
TOKENS_PER_LESSON = 2048
LONGEST = 2048  # tokens of a dialogue: longer ones take time that several short ones teach more in
NUM_HELD_OUT = 24  # lessons
_HELD_OUT_SEED = 10**9 + 1  # no training seed is as high


def load_target(folder: Path) -> Decoder:
    """The text model of a checkpoint, every matrix as its codes stand for it."""
    target = Decoder(make_spec(text_config(folder)), seed=0)
    tensors = text_tensors(folder)
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
    return target.requires_grad_(False)


def lessons_of(target: Decoder, folder: Path, seed: int) -> Iterator[Lesson]:
    examples = DialogueSource(str(folder / "tokenizer.json"))(seed)
    return make_lessons(target, examples, num_drafts=NUM_DRAFTS, tokens_per_lesson=TOKENS_PER_LESSON, longest=LONGEST)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the drafter of the bundled model.")
    parser.add_argument("folder", type=Path, help="the model's checkpoint; the drafter becomes a part of it")
    parser.add_argument("--lessons", type=int, default=240, help=f"batches of {TOKENS_PER_LESSON} tokens (240)")
    parser.add_argument("--epochs", type=int, default=6, help="how often each is used (6)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.perf_counter()

    def report(line: str) -> None:
        print(f"{(time.perf_counter() - start) / 60:5.1f} min  {line}", flush=True)

    folder: Path = arguments.folder
    target = load_target(folder)
    config = make_drafter_config(text_config(folder))
    drafter = Drafter(make_drafter_spec(config, text_config(folder)), arguments.seed)
    drafter.begin_with_head(target.embed_tokens.weight)
    held_out = list(islice(lessons_of(target, folder, _HELD_OUT_SEED), NUM_HELD_OUT))
    lessons = list(islice(lessons_of(target, folder, arguments.seed), arguments.lessons))
    num_places = sum(lesson.num_places for lesson in lessons)
    report(f"{len(lessons)} lessons with {num_places:,} places to draft from")
    num_steps = train(drafter, target, lessons, num_epochs=arguments.epochs, seed=arguments.seed, report=report)
    report(f"held out, as trained: {acceptance(drafter, target, held_out)}")
    round_as_stored(drafter)
    measured = acceptance(drafter, target, held_out)
    report(f"held out, as stored:  {measured}")
    export_drafter(drafter, config, folder, measured)
    report(f"{num_steps} steps; {folder / FOLDER}: {bytes_in(folder / FOLDER):,} bytes")


if __name__ == "__main__":
    main()
