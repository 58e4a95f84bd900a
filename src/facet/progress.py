"""Progress bars behind one small interface, so that code below the command line never prints anything itself."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    """Something that can show how far a task is."""

    def task(self, title: str, total: int) -> AbstractContextManager[Advance]: ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        yield lambda amount: None


class Bars:
    """A bar on standard error, where there is a terminal to show it."""

    @contextmanager
    def task(self, title: str, total: int) -> Iterator[Advance]:
        # Imported here: worker processes and tests that show nothing need not load a terminal library.
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task(title, total=total)
            yield lambda amount: bars.advance(task, amount)
