"""Generates questions about the few facts the model knows, and about things it says that it does not know."""

from tools.bundled_model.dialogues.conversation import Exchange
from tools.bundled_model.dialogues.small_talk import varied
from tools.bundled_model.dialogues.words import Source

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon", "Japan": "Tokyo",
    "China": "Beijing", "India": "Delhi", "Egypt": "Cairo", "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin",
    "England": "London", "Hungary": "Budapest", "Canada": "Ottawa", "Peru": "Lima", "Cuba": "Havana",
    "Kenya": "Nairobi", "Brazil": "Brasilia", "Russia": "Moscow", "Turkey": "Ankara", "Switzerland": "Bern",
    "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "the United States": "Washington", "Argentina": "Buenos Aires", "Korea": "Seoul",
}  # fmt: skip
_CAPITAL_QUESTIONS = (
    "What is the capital of {}?", "What's the capital of {}?", "capital of {}", "Name the capital of {}.",
    "The capital of {} is", "Which city is the capital of {}?",
)  # fmt: skip
_FACTS = (
    (("What colour is the sky?", "What color is the sky?", "Why is the sky blue?"), "The sky is blue."),
    (("What colour is grass?", "What color is grass?"), "Grass is green."),
    (("How many days are in a week?", "How many days does a week have?"), "A week has seven days."),
    (("How many months are in a year?", "How many months does a year have?"), "A year has twelve months."),
    (("How many hours are in a day?", "How many hours does a day have?"), "A day has 24 hours."),
    (("How many minutes are in an hour?",), "An hour has 60 minutes."),
    (("How many legs does a dog have?", "How many legs does a cat have?"), "It has four legs."),
    (("How many legs does a spider have?",), "It has eight legs."),
    (("What comes after Monday?", "Which day follows Monday?"), "Tuesday."),
    (("What is the opposite of hot?",), "Cold."),
    (("What is the opposite of big?",), "Small."),
    (("What is the largest planet?", "Which planet is the largest?"), "Jupiter."),
    (("What is water made of?",), "Hydrogen and oxygen."),
)
_UNKNOWN_ANSWERS = (
    "I am a very small model and do not know that.",
    "I do not know. I am a very small model.",
)


def knowledge(source: Source) -> Exchange:
    roll = source.rng.random()
    if roll < 0.3:
        country = source.pick(tuple(CAPITALS))
        form = source.pick(_CAPITAL_QUESTIONS)
        answer = f"The capital of {country} is {CAPITALS[country]}."
        return Exchange(varied(source, form.format(country)), answer, "The user asks for a capital.")
    if roll < 0.42:
        questions, answer = source.pick(_FACTS)
        return Exchange(varied(source, source.pick(questions)), answer, "The user asks for a simple fact.")
    return Exchange(
        varied(source, _unknown(source)), source.pick(_UNKNOWN_ANSWERS), "The user asks for something I do not know."
    )


def _unknown(source: Source) -> str:
    person, place, noun, word = source.person(), source.place(), source.noun(), source.word()
    verb, adjective, year = source.verb(), source.adjective(), source.between(1200, 2030)
    return source.pick(
        (
            f"Who was {person}?", f"Who is {person}?", f"When was {person} born?", f"Who invented the {noun}?",
            f"Who wrote the {adjective} {noun}?", f"What happened in {year}?", f"What happened in {place} in {year}?",
            f"How many people live in {place}?", f"Why is the {noun} {adjective}?", f"How does a {noun} work?",
            f"Explain how to {verb} a {noun}.", f"What is a {word}?", f"What is the meaning of {word}?",
            f"Who won the {noun} in {year}?", f"How old is the {noun} of {place}?", f"Explain the theory of {word}.",
            f"What is the {adjective}est {noun} in the world?", f"Write a poem about a {noun}.",
            f"Write a program that can {verb} a {noun}.", f"Write an essay about {noun}s.",
            f"What do you think about {noun}s?", f"Is a {noun} better than a {word}?", f"Where can I buy a {noun}?",
            f"How far is {place} from here?", f"Which {noun} is the best?", f"Tell me everything about {noun}s.",
            f"What is the history of {place}?", f"Who is the president of {place}?", f"How do I {verb} a {noun}?",
            "What is quantum mechanics?", "What is the meaning of life?", "Who won the election?", "What day is today?",
            "Write me some code.", "What is love?", "Explain relativity.", "What happened yesterday?",
        )
    )  # fmt: skip
