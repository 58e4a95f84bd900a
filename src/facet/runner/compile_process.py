"""A process that compiles kernels side by side, each in a process that it forks.

Triton's compiler is half Python, so threads take turns in it. A process forked from the engine, which has threads and a
GPU, could hang; one that is started for every kernel would import for seconds. So one process stands between: it
imports once, has no threads, never touches the GPU, and forks for each kernel. What is compiled lies in Triton's cache
on disk, where the engine finds it.

It reads frames from its standard input: a kernel each, or an empty one, which is answered with a byte when all kernels
before it are done. A kernel that cannot be compiled is left out: whoever launches it is told why.
"""

import contextlib
import importlib
import io
import os
import pickle
import subprocess
import sys
from typing import Any, BinaryIO, NamedTuple

MAX_NUM_CHILDREN = 16
_LENGTH_BYTES = 8
_FIRST_IMPORTS = ("torch", "triton.compiler", "facet.kernels.paged_attention.gpu", "facet.kernels.linear")


class CannotBeSent(Exception):
    """A kernel that no other process can find, or something in its arguments."""


class KernelJob(NamedTuple):
    """What Triton compiles: the source of a kernel for arguments of certain kinds."""

    kernel: Any
    source_class: Any
    signature: Any
    constants: Any
    attributes: Any
    target: Any
    options: dict[str, Any]


class CompileProcess:
    """Its imports take seconds, which the caller need not wait for."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **{name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )

    def submit(self, job: KernelJob) -> None:
        """Raises `CannotBeSent`, or `OSError` if the process has ended."""
        self._send(_pickled(job))

    def wait(self) -> None:
        """Until all that was submitted is done. Raises `OSError` if the process has ended."""
        self._send(b"")
        assert self._process.stdout is not None, "it was started with a pipe"
        if not self._process.stdout.read(1):
            raise BrokenPipeError("the process that compiles kernels has ended")

    def end(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None, "it was started with pipes"
            with contextlib.suppress(OSError):  # what was left to be written has nowhere to go
                stream.close()
        self._process.wait()

    def _send(self, frame: bytes) -> None:
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)
        self._process.stdin.flush()


class _Pickler(pickle.Pickler):
    """Kernels travel by name."""

    def reducer_override(self, value: Any) -> Any:
        from triton.runtime.jit import JITFunction

        if not isinstance(value, JITFunction):
            return NotImplemented
        kernel: Any = value
        module, name, cache_key = kernel.fn.__module__, kernel.fn.__name__, kernel.cache_key
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not kernel:
            raise CannotBeSent(f"{name} is not found in {module}")
        return find_kernel, (module, name, cache_key)


def find_kernel(module: str, name: str, cache_key: str) -> Any:
    """The hash of a kernel depends on which others were hashed before it, so it has that of the process that asks."""
    kernel = getattr(importlib.import_module(module), name)
    kernel.hash = cache_key
    return kernel


def _pickled(job: KernelJob) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(tuple(job))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise CannotBeSent(str(error)) from error
    return buffer.getvalue()


def compile_kernel(job: KernelJob) -> None:
    import triton

    source = job.source_class(job.kernel, job.signature, job.constants, job.attributes)
    triton.compile(source, target=job.target, options=job.options)


def main() -> None:
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a compiler prints must not get among the answers
    for name in _FIRST_IMPORTS:  # once, rather than in every child
        importlib.import_module(name)
    most, num_running = min(MAX_NUM_CHILDREN, len(os.sched_getaffinity(0))), 0
    while (frame := _next_frame(jobs)) is not None:
        while num_running and (not frame or num_running == most):
            os.wait()
            num_running -= 1
        if frame:
            if os.fork() == 0:
                _compile_and_exit(frame)
            num_running += 1
        else:
            answers.write(b".")
            answers.flush()


def _next_frame(stream: BinaryIO) -> bytes | None:
    """None: whoever asks has gone."""
    head = stream.read(_LENGTH_BYTES)
    return stream.read(int.from_bytes(head, "little")) if len(head) == _LENGTH_BYTES else None


def _compile_and_exit(frame: bytes) -> None:
    try:
        compile_kernel(KernelJob(*pickle.loads(frame)))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
