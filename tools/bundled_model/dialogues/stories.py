"""Generates short stories from a grammar: a person, a place, a problem, a helper, an end."""

# ruff: noqa: SIM905  (long lists of words read better as text)

from tools.bundled_model.dialogues.conversation import Exchange
from tools.bundled_model.dialogues.small_talk import varied
from tools.bundled_model.dialogues.words import Source

_HEROES = "fox owl bear rabbit mouse cat dog hedgehog turtle frog robot dragon goat horse bird fish girl boy".split()
_HELPERS = ("owl", "squirrel", "beaver", "crow", "old woman", "young king", "miller", "ferryman", "baker", "snail")
_HOMES = ("by the river", "in a small forest", "near the sea", "under a hill", "in an old tower", "on a quiet farm")
_TREASURES = ("a golden key", "a red lamp", "a silver bell", "a warm blanket", "a wooden boat", "a jar of honey")
_TRAITS = "kind brave curious small clever quiet".split()
_LESSONS = (
    "And so they learned that help is near if you ask.",
    "From then on they shared everything.",
    "That night they all slept well.",
    "And they stayed friends for ever.",
)


def story(source: Source) -> Exchange:
    hero, trait = source.pick(_HEROES), source.pick(_TRAITS)
    name = source.pick(source.lexicon.first_names)
    helper = source.pick(_HELPERS)
    treasure, home, lesson = source.pick(_TREASURES), source.pick(_HOMES), source.pick(_LESSONS)
    subject = f"a {hero}" if source.chance(0.7) else ""
    if subject and source.chance(0.3):
        subject = f"{subject} called {name}"
    question = source.pick(
        ("Tell me a story", "Tell me a short story", "Write a story", "Write a short story", "I want to hear a story",
         "Make up a story", "Can you tell me a story", "A story, please")
    )  # fmt: skip
    question += f" about {subject}" if subject else ""
    question += source.pick((".", "", "!"))
    trouble, remedy = source.pick(
        (
            (f"One day {name} lost {treasure}.", f"The {helper} had found {treasure} and gave it back."),
            (f"One day {name} could not find the way home.", f"The {helper} knew the way and went along."),
            (f"One day a storm took {treasure} away.", f"The {helper} helped to look until they had {treasure} again."),
            (f"One day {name} felt very alone.", f"The {helper} sat down and brought {treasure}."),
        )
    )
    text = (
        f"Once upon a time there was a {trait} {hero} called {name} who lived {home}. {trouble} "
        f"{name} asked the {helper} for help. {remedy} {lesson}"
    )
    return Exchange(varied(source, question), text, f"The user wants a story about a {hero}.")
