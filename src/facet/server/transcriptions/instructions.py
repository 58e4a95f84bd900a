"""What a model is asked about speech: in the words that Google's documentation of Gemma gives for each task."""

from collections.abc import Sequence

_FORMAT = (
    "Follow these specific instructions for formatting the answer:\n"
    "* Only output the transcription, with no newlines.\n"
    "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, and write 3 instead of "
    "three."
)


def transcribe(language: str | None) -> str:
    """`language` None: the model is to hear which one it is."""
    into = "in its original language" if language is None else f"in {language} into {language} text"
    return f"Transcribe the following speech segment {into}.\n\n{_FORMAT}"


def translate(language: str | None, target: str) -> str:
    """The answer begins with the words in their own language; `translation_mark` stands before the translation."""
    source = "its original language" if language is None else language
    return (
        f"Transcribe the following speech segment in {source}, then translate it into {target}. When formatting the "
        f"answer, first output the transcription in {source}, then one newline, then output the string "
        f"'{translation_mark(target)} ', then the translation in {target}."
    )


def translation_mark(target: str) -> str:
    return f"{target}:"


def with_context(instruction: str, prompt: str, keywords: Sequence[str]) -> str:
    """What a client knows of the speech beforehand."""
    if keywords:
        instruction += f"\n\nWords that may occur in the speech: {', '.join(keywords)}"
    if prompt:
        instruction += f"\n\nThe context of the speech, which is not to be repeated in the answer: {prompt}"
    return instruction
