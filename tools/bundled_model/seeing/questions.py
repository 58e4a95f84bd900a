"""Asks about a scene, and answers from what was drawn."""

from tools.bundled_model.dialogues.conversation import Exchange
from tools.bundled_model.dialogues.numbers_in_words import in_words
from tools.bundled_model.dialogues.words import Source
from tools.bundled_model.seeing.scenes import SHAPES, Scene, Thing

_WHAT = ("What is this?", "What do you see?", "Describe the picture.", "What is in the picture?", "What does it show?",
         "What can you see here?", "Describe this image.")  # fmt: skip
_PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}


def ask_about(scene: Scene, source: Source) -> Exchange:
    return {"one": _one, "several": _several, "two": _two, "number": _number, "word": _word}[scene.kind](scene, source)


def _one(scene: Scene, source: Source) -> Exchange:
    (thing,) = scene.things
    thought = f"I see {_article(thing.words)}."
    question, answer = source.pick(
        (
            (source.pick(_WHAT), f"{_article(thing.words).capitalize()}."),
            (source.pick(("What colour is it?", f"What colour is the {thing.shape}?")), f"It is {thing.colour}."),
            (source.pick(("What shape is it?", "Which shape is this?")), f"It is {_article(thing.shape)}."),
        )
    )
    return Exchange(question, answer, thought)


def _several(scene: Scene, source: Source) -> Exchange:
    thought = f"I count {in_words(len(scene.things))} in all."
    if source.chance(0.4):
        question = source.pick(("How many shapes are there?", "How many things do you see?", "Count the shapes."))
        return Exchange(question, _count(len(scene.things), "shape", "shapes"), thought)
    shape = source.pick(scene.things).shape
    num = sum(thing.shape == shape for thing in scene.things)
    question = source.pick(("How many {} are there?", "How many {} do you see?", "Count the {}."))
    return Exchange(question.format(_PLURALS[shape]), _count(num, shape, _PLURALS[shape]), thought)


def _two(scene: Scene, source: Source) -> Exchange:
    first, second = scene.things
    is_across = abs(first.x - second.x) > abs(first.y - second.y)
    before, after = ("on the left", "on the right") if is_across else ("at the top", "at the bottom")
    thought = f"I see {_article(first.words)} {before} and {_article(second.words)} {after}."
    if source.chance(0.3):
        whole = f"{_article(first.words)} {before} and {_article(second.words)} {after}."
        return Exchange(source.pick(_WHAT), whole[0].upper() + whole[1:], thought)
    thing, where = source.pick(((first, before), (second, after)))
    question, answer = source.pick(
        (
            (f"What is {where}?", _sentence(thing)),
            (f"What colour is the shape {where}?", f"It is {thing.colour}."),
        )
    )
    return Exchange(question, answer, thought)


def _number(scene: Scene, source: Source) -> Exchange:
    question = source.pick(("Which number is this?", "What number do you see?", "Read the number.", *_WHAT[:2]))
    return Exchange(question, f"The number {scene.text}.", f"I see the digits {' '.join(scene.text)}.")


def _word(scene: Scene, source: Source) -> Exchange:
    question = source.pick(("What does it say?", "Read the word.", "Which word is this?", *_WHAT[:2]))
    return Exchange(question, f'It says "{scene.text}".', f"I see the letters {' '.join(scene.text)}.")


def _sentence(thing: Thing) -> str:
    return f"{_article(thing.words).capitalize()}."


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _count(num: int, one: str, many: str) -> str:
    return f"There is one {one}." if num == 1 else f"There are {in_words(num)} {many}."
