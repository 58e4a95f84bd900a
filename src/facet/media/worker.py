"""The process that decodes media: does one job after another, within limits that the operating system enforces.

Decoders are C code that reads files from strangers. In here a crash, a hang or a hunger for memory costs one request
and one process. `workers.py` starts it, with `python -m facet.media.worker`, and talks to it through its standard
streams. It is told what to do by pickle, since it trusts who started it; it answers in messages with fixed types, since
nobody has to trust it.
"""

import importlib
import pickle
import resource
import signal
import sys
from typing import Any

import msgspec

from facet.errors import RequestError
from facet.piped_process import answer_pipe, read_frame, write_frame
from facet.prepared_media import PreparedMedia

MEMORY_BYTES = 3 << 30  # of addresses: libraries reserve some that they never use
JOBS = "facet.media.jobs"  # imported while starting, with the libraries it needs

# The dotted name of a function that returns prepared media, and what to call it with. By name, so that who asks for it
# does not have to import it, and the libraries it needs.
Job = tuple[str, tuple[Any, ...]]


class Done(msgspec.Struct, frozen=True):
    """What became of a job: what it prepared, or why it could not."""

    media: tuple[PreparedMedia, ...] = ()
    refusal: str | None = None  # what a client did wrong
    field: str | None = None  # and where
    fault: str | None = None  # what we did wrong


def do_job(job: Job) -> Done:
    name, arguments = job
    module, _, function = name.rpartition(".")
    try:
        return Done(media=tuple(getattr(importlib.import_module(module), function)(*arguments)))
    except RequestError as error:
        return Done(refusal=str(error), field=error.field)
    except MemoryError:
        return Done(refusal="The file needs more memory than media may take. Send a smaller one.", field="messages")
    except Exception as error:
        return Done(fault=f"{type(error).__name__}: {error}")


def main() -> None:
    jobs, answers = sys.stdin.buffer, answer_pipe()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process sees to that
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # nothing to be written to any file
    ):
        resource.setrlimit(limit, (value, value))
    importlib.import_module(JOBS)
    write_frame(answers, b"")  # ready: from here on time is counted
    encoder = msgspec.msgpack.Encoder()
    while (frame := read_frame(jobs)) is not None:
        write_frame(answers, encoder.encode(do_job(pickle.loads(frame))))


if __name__ == "__main__":
    main()
