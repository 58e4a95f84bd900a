"""Imports large libraries in four fifths of the time: nobody looks for garbage meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_imports() -> Iterator[None]:
    """Keeps the garbage collector away from imports of torch and what needs it. What is imported stays; to look through
    it again and again is in vain.

    Another thread may do the same: whoever ends first turns the collector on again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
