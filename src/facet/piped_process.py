"""Processes of our own that are talked to through pipes: how they are started and stopped, and what travels.

A frame is some bytes with their number before them.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

_LENGTH_BYTES = 8


def start_piped(module: str, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """`python -m module`, which finds what this process finds. It runs on one core; what it prints is lost."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **environment,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",  # the processes are what runs in parallel
            "OPENBLAS_NUM_THREADS": "1",
        },
    )


def stop_piped(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process at once, whatever it is doing."""
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None, "it was started with pipes"
        with contextlib.suppress(OSError):  # what was left to be written has nowhere to go
            stream.close()
    process.wait()


def answer_pipe() -> IO[bytes]:
    """For the process itself: where its answers go. What a library prints must not get among them, and goes elsewhere
    from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def write_frame(stream: IO[bytes], frame: bytes) -> None:
    stream.write(len(frame).to_bytes(_LENGTH_BYTES, "little"))
    stream.write(frame)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame; None at the end of the stream, even amid a frame."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    frame = stream.read(length)
    return frame if len(frame) == length else None
