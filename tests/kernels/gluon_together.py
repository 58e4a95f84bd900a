"""Programs of one launch that wait for each other, for the emulator of Gluon: one runs at a time, and who goes on when
they meet is drawn at random."""

import random
import threading
from collections.abc import Callable
from typing import Any

from tests.kernels.gluon_copies import COPIES
from tests.kernels.gluon_emulator import PROGRAM, Int, Kernel, Pointer, pointers_to


class Programs:
    """Those of the launch under way: threads that take turns."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.turn = threading.Condition()
        self.failure: BaseException | None = None

    def run(self, function: Callable[[], None], count: int) -> None:
        self.count, self.ready, self.waiting, self.failure = count, set(range(count)), set[int](), None
        self.running: int | None = None
        threads = [threading.Thread(target=self._program, args=(index, function)) for index in range(count)]
        for thread in threads:
            thread.start()
        with self.turn:
            self._next()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _program(self, index: int, function: Callable[[], None]) -> None:
        try:
            self._await(index, [], [])
            function()
            assert not COPIES.groups, "every copy is waited for"
        except BaseException as error:
            self.failure = self.failure or error
        with self.turn:
            self.ready.discard(index)
            self._next()

    def _next(self) -> None:
        self.running = self.random.choice(sorted(self.ready)) if self.ready else None
        self.turn.notify_all()

    def _await(self, index: int, started: list[Any], groups: list[Any]) -> None:
        with self.turn:
            self.turn.wait_for(lambda: self.running == index or self.failure is not None)
        if self.failure is not None:
            raise SystemExit
        PROGRAM.ids, PROGRAM.sizes = (index, 0), (self.count, 1)
        COPIES.started, COPIES.groups = started, groups

    def pause(self, *, to_meet: bool = False) -> None:
        """Somebody else's turn, perhaps; where programs meet, not this one's again before all are here."""
        index, started, groups = PROGRAM.ids[0], COPIES.started, COPIES.groups
        with self.turn:
            if to_meet:
                self.ready.discard(index)
                self.waiting.add(index)
                if len(self.waiting) == self.count:
                    self.ready, self.waiting = self.waiting, set()
            self._next()
        self._await(index, started, groups)


PROGRAMS = Programs()


class TogetherKernel(Kernel):
    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, **kwargs: Any) -> None:
            given = pointers_to(args)
            PROGRAMS.run(lambda: self.function(*given, **kwargs), grid[0])

        return launch


def jit(function: Callable[..., Any] | None = None, **_options: object) -> Any:
    return TogetherKernel if function is None else TogetherKernel(function)


def arrive(arrivals: Pointer) -> Int:
    PROGRAMS.pause()
    before = Int(arrivals.numbers[0].item())
    arrivals.numbers[0] += 1
    PROGRAMS.pause()
    return before


def meet(arrivals: Pointer, _num_programs: int) -> None:
    arrivals.numbers[0] += 1
    PROGRAMS.pause(to_meet=True)
