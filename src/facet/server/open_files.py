"""Lets the process open as many files as its waiting clients need: every connection is one."""

import contextlib
import resource

# More connections than one process serves. The hard limit may be a billion.
_ENOUGH = 1 << 16


def raise_limit_of_files() -> None:
    """Many systems start with 1,024, fewer than the requests that may wait; a connection beyond is just dropped."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # what is allowed has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
