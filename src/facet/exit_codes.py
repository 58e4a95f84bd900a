"""Says in words how a process ended."""

import signal


def how_it_ended(code: int) -> str:
    """As Python gives it: negative for the number of a signal. It follows the name of the process in a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        return f"was killed (signal {-code}), most likely because memory ran out"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by {name} (signal {-code})"
