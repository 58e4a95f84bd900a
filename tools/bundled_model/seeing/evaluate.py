"""Measures what a model sees: asks it about pictures it has not met, through Facet, and counts answers that are right.

python -m tools.bundled_model.seeing.evaluate FOLDER --num 500
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

from facet import LLM, SamplingParams
from tools.bundled_model.dialogues.words import Lexicon, Source
from tools.bundled_model.seeing.questions import ask_about
from tools.bundled_model.seeing.scenes import draw_scene

_AT_ONCE = 50


def evaluate(folder: Path, num: int, seed: int, **settings: object) -> dict[str, tuple[int, int]]:
    """By kind of scene, how many answers are exactly right, and of how many."""
    llm = LLM(str(folder), show_progress=False, **settings)  # type: ignore[arg-type]
    source = Source(random.Random(seed), Lexicon.of(held_out=True))
    scenes = [draw_scene(source) for _ in range(num)]
    exchanges = [ask_about(scene, source) for scene in scenes]
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    try:
        for start in range(0, num, _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            questions = [
                [{"role": "user", "content": [{"type": "image", "image": scene.image}, exchange.question]}]
                for scene, exchange in zip(scenes[part], exchanges[part], strict=True)
            ]
            outputs = llm.chat(questions, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
            for scene, exchange, output in zip(scenes[part], exchanges[part], outputs, strict=True):
                asked[scene.kind] += 1
                right[scene.kind] += output.outputs[0].text.strip() == exchange.answer
    finally:
        llm.close()
    return {kind: (right[kind], asked[kind]) for kind in sorted(asked)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a model about made-up pictures.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1_000_003)
    parser.add_argument("--json", type=Path, help="write the figures here too, for the model card")
    arguments = parser.parse_args()
    counts = evaluate(arguments.folder, arguments.num, arguments.seed)
    for kind, (right, asked) in counts.items():
        print(f"{kind:8} {right:5} of {asked:5}  {right / asked:.1%}")
    if arguments.json:
        figures = [
            {"name": f"pictures: {kind}", "right": right, "num": asked, "wanted": None}
            for kind, (right, asked) in counts.items()
        ]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
