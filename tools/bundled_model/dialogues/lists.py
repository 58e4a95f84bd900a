"""Generates tasks with short lists: naming things of a kind, counting, sorting, reversing, first and last."""

from tools.bundled_model.dialogues.conversation import Exchange, listed
from tools.bundled_model.dialogues.numbers_in_words import in_words
from tools.bundled_model.dialogues.small_talk import varied
from tools.bundled_model.dialogues.words import Source

KINDS: dict[str, tuple[str, ...]] = {
    "rivers": ("the Nile", "the Amazon", "the Danube", "the Rhine", "the Thames", "the Ganges"),
    "colours": ("red", "blue", "green", "yellow", "orange", "purple"),
    "colors": ("red", "blue", "green", "yellow", "orange", "purple"),
    "animals": ("dog", "cat", "horse", "lion", "elephant", "rabbit"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn"),
    "fruits": ("apple", "banana", "cherry", "orange", "grape", "pear"),
    "vegetables": ("carrot", "potato", "onion", "tomato", "cabbage", "spinach"),
    "birds": ("eagle", "owl", "robin", "sparrow", "swan", "crow"),
    "countries": ("France", "Japan", "Brazil", "Egypt", "Canada", "India"),
    "cities": ("Paris", "London", "Tokyo", "Cairo", "Lima", "Sydney"),
    "mountains": ("Everest", "Kilimanjaro", "Mont Blanc", "the Matterhorn", "Fuji", "Denali"),
    "trees": ("oak", "pine", "birch", "maple", "willow", "beech"),
    "flowers": ("rose", "tulip", "daisy", "lily", "violet", "poppy"),
    "metals": ("iron", "gold", "silver", "copper", "tin", "zinc"),
    "instruments": ("piano", "violin", "guitar", "flute", "drum", "trumpet"),
    "oceans": ("the Pacific", "the Atlantic", "the Indian Ocean", "the Arctic Ocean"),
    "seasons": ("spring", "summer", "autumn", "winter"),
    "days": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "days of the week": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "months": ("January", "February", "March", "April", "May", "June"),
    "languages": ("English", "French", "Spanish", "Chinese", "Arabic", "Hindi"),
    "programming languages": ("Python", "C", "Rust", "Java", "Go", "Ruby"),
    "drinks": ("water", "tea", "coffee", "milk", "juice", "lemonade"),
    "sports": ("football", "tennis", "swimming", "running", "chess", "cycling"),
    "shapes": ("circle", "square", "triangle", "star", "cube", "cone"),
    "numbers": ("one", "two", "three", "four", "five", "six"),
    "letters": ("a", "b", "c", "d", "e", "f"),
    "Gemma models": ("Gemma 4 E2B", "Gemma 4 E4B", "Gemma 4 31B", "Gemma 3 27B"),
}  # fmt: skip
_ALL_KINDS = tuple(KINDS)


def short_lists(source: Source) -> Exchange:
    return source.pick((_name_some, _name_some, _name_some, _sort, _reverse, _count, _end, _repeat))(source)


def _name_some(source: Source) -> Exchange:
    kind = source.pick(_ALL_KINDS)
    members = KINDS[kind]
    num = source.between(2, min(5, len(members)))
    said = in_words(num) if source.chance(0.7) else str(num)
    question = source.pick(
        (
            f"Name {said} {kind}.", f"Name {said} {kind}", f"List {said} {kind}.", f"Give me {said} {kind}.",
            f"Tell me {said} {kind}.", f"Can you name {said} {kind}?", f"What are {said} {kind}?",
            f"Which {said} {kind} do you know?", f"Please list {said} {kind}.",
        )
    )  # fmt: skip
    # Always the same ones: a small model names what it has seen most.
    answer = listed(members[:num])
    return Exchange(varied(source, question), f"{answer[0].upper()}{answer[1:]}.", f"I name {in_words(num)} {kind}.")


def _items(source: Source) -> list[str]:
    if source.chance(0.25):
        return [str(number) for number in source.sample(range(100), source.between(3, 5))]
    words = source.sample(source.lexicon.nouns, source.between(3, 5))
    return words


def _ask(source: Source, task: str, items: list[str]) -> str:
    row = ", ".join(items) if source.chance(0.7) else listed(items)
    end = source.pick((".", "", "?"))
    return f"{task}{source.pick((':', '', ':'))} {row}{end}"


def _sort(source: Source) -> Exchange:
    items = _items(source)
    are_numbers = items[0].isdigit()
    order = sorted(items, key=int) if are_numbers else sorted(items)
    task = source.pick(("Sort these", "Sort this list", "Put these in order", "Sort", "Please sort"))
    if not are_numbers:
        task = source.pick((task, "Sort these words", "Sort the words by letter", "Put in alphabetical order"))
    return Exchange(_ask(source, task, items), f"{', '.join(order)}", "I sort the list.")


def _reverse(source: Source) -> Exchange:
    items = _items(source)
    task = source.pick(("Reverse this list", "Reverse", "Turn this list around", "Say this backwards", "Reverse these"))
    return Exchange(_ask(source, task, items), ", ".join(reversed(items)), "I turn the list around.")


def _count(source: Source) -> Exchange:
    items = _items(source)
    task = source.pick(
        ("How many items are in this list", "Count these", "How many words are these", "Count the items")
    )
    return Exchange(_ask(source, task, items), f"There are {in_words(len(items))}.", "I count the items.")


def _end(source: Source) -> Exchange:
    items = _items(source)
    which = source.pick(("first", "last"))
    task = source.pick((f"What is the {which} item", f"Which word is {which}", f"Give me the {which} of these"))
    return Exchange(_ask(source, task, items), items[0 if which == "first" else -1], f"I take the {which} item.")


def _repeat(source: Source) -> Exchange:
    text = " ".join(source.word() for _ in range(source.between(1, 4)))
    question = source.pick((f'Say "{text}".', f'Repeat "{text}"', f"Repeat after me: {text}", f"Say: {text}"))
    return Exchange(question, text, "I repeat the words.")
