"""Starts engine processes in a moment: they fork from a process that has imported everything.

Facet itself starts fresh interpreters, as the tests of the processes and of the command line do.
"""

import contextlib
import multiprocessing
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def quick_starts() -> Iterator[None]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.engine_imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("facet.engine.rank_processes.multiprocessing.get_context", lambda method: context)
        yield
