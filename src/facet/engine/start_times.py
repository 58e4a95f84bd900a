"""Times the parts of a start, one after the other."""

import time

StartTimes = tuple[tuple[str, float], ...]


class StartClock:
    def __init__(self, since: float | None = None) -> None:
        """`since`: when the start began, on the monotonic clock, which all processes share; None: now."""
        self._last = time.monotonic() if since is None else since
        self._parts: list[tuple[str, float]] = []

    def ends(self, part: str) -> None:
        now = time.monotonic()
        self._parts.append((part, now - self._last))
        self._last = now

    def times(self) -> StartTimes:
        return tuple(self._parts)


def start_line(times: StartTimes) -> str:
    parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in times)
    return f"The engine started in {sum(seconds for _, seconds in times):.1f} s: {parts}."
