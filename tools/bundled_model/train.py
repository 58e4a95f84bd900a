"""Trains the bundled model: `python -m tools.bundled_model.train --minutes 8 --output FOLDER`.

This module reads flags and starts the workers that make data; the trainer is imported after that. Worker processes
import this module too, and would otherwise each spend seconds on loading torch.
"""

import argparse
import os
import time

from tools.bundled_model.settings import TrainSettings, add_flags, settings_of
from tools.bundled_model.stream import BatchMaker, ExampleSource, OwnBatches
from tools.bundled_model.workers import WorkerBatches


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m tools.bundled_model.train", description="Train the bundled model.")
    add_flags(parser)
    settings = settings_of(parser.parse_args())
    settings.output.mkdir(parents=True, exist_ok=True)
    batches = start_batches(settings)
    try:
        from tools.bundled_model.trainer import train

        print(f"data under way after {time.monotonic() - started:.1f} s", flush=True)
        train(settings, batches)
    finally:
        batches.close()


def start_batches(settings: TrainSettings) -> OwnBatches | WorkerBatches:
    from tools.bundled_model.dialogue_source import DialogueSource, find_tokenizer

    tokenizer = find_tokenizer(settings.tokenizer, settings.output)
    source: ExampleSource = DialogueSource(str(tokenizer))
    room = None
    if settings.pictures:
        from tools.bundled_model.seeing.source import SeeingSource, picture_room
        from tools.bundled_model.seeing.vocabulary import write_with_picture_tokens

        tokenizer = write_with_picture_tokens(tokenizer, settings.output)
        source = SeeingSource(str(tokenizer), settings.pictures)
        room = picture_room(settings.rows, settings.row_length, settings.pictures)
    maker = BatchMaker(
        source=source,
        seed=settings.seed,
        num_rows=settings.rows,
        row_length=settings.row_length,
        picture_room=room,
    )
    num_cores = len(os.sched_getaffinity(0))
    num_workers = max(1, num_cores - 1) if settings.workers is None else settings.workers
    first = 0
    if settings.resume is not None:
        from tools.bundled_model.checkpoint import saved_steps

        first = saved_steps(settings.resume)
    if num_workers == 0:
        return OwnBatches(maker, first)
    return WorkerBatches(maker, num_workers, settings.most_uses, first)


if __name__ == "__main__":
    main()
