"""Draws some pictures to look at, and prints a question and its answer about each.

python -m tools.bundled_model.seeing.draw FOLDER
"""

import argparse
import random
from pathlib import Path

from tools.bundled_model.dialogues.words import Lexicon, Source
from tools.bundled_model.seeing.questions import ask_about
from tools.bundled_model.seeing.scenes import draw_scene


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw some pictures, and print a question about each.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    source = Source(random.Random(arguments.seed), Lexicon.of(held_out=True))
    for index in range(arguments.num):
        scene = draw_scene(source)
        scene.image.save(arguments.folder / f"{index:03}-{scene.kind}.png")
        exchange = ask_about(scene, source)
        print(f"{index:03} {scene.kind:8} {exchange.question}  {exchange.answer}")


if __name__ == "__main__":
    main()
