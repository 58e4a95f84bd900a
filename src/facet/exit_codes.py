"""Says in words how a process ended."""

import signal


def how_it_ended(code: int) -> str:
    """How a process ended, in words that follow its name in a sentence. `code` is as Python gives it: negative for the
    number of a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        return f"was killed (signal {-code}), most likely because memory ran out"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by {name} (signal {-code})"
