"""How a process ended, in words."""

import signal

import pytest

from facet.exit_codes import how_it_ended


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGKILL, "was killed (signal 9), most likely because memory ran out"),
        (-signal.SIGSEGV, "was ended by SIGSEGV (signal 11)"),
        (-250, "was ended by signal 250"),
    ],
)
def test_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words
