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
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from facet.large_imports import large_imports
from facet.piped_process import answer_pipe, read_frame, start_piped, stop_piped, write_frame

MAX_NUM_CHILDREN = 16
MARK = "facet-"  # with this begin the marks that starts leave in Triton's cache (`compile_ahead.py`)
GPU_FILE = "/dev/nvidiactl"  # that a machine with an NVIDIA GPU has
_FIRST_IMPORTS = ("torch", "facet.kernels.paged_attention.gpu", "facet.kernels.linear")


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
    """A process that compiles kernels. Its imports take seconds, which the caller need not wait for."""

    def __init__(self) -> None:
        # It compiles, whatever this process does.
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._process = start_piped(__name__, environment)
        assert self._process.stdin is not None, "it was started with pipes"
        assert self._process.stdout is not None, "it was started with pipes"
        self._jobs, self._answers = self._process.stdin, self._process.stdout

    def submit(self, job: KernelJob) -> None:
        """Raises `CannotBeSent`, or `OSError` if the process has ended."""
        write_frame(self._jobs, _pickled(job))

    def wait(self) -> None:
        """Waits until all that was submitted is done. Raises `OSError` if the process has ended."""
        write_frame(self._jobs, b"")
        if not self._answers.read(1):
            raise BrokenPipeError("the process that compiles kernels has ended")

    def end(self) -> None:
        stop_piped(self._process)


def begin_early(device: str) -> CompileProcess | None:
    """A process for a start that is certain to compile kernels: it imports while the caller does.

    Certain means, as far as can be known without torch and Triton, that there is a GPU and that no start has ended yet.
    """
    is_marked = any(_cache_folder().glob(f"{MARK}*"))
    if device == "cpu" or is_marked or not os.path.exists(GPU_FILE):
        return None
    try:
        return CompileProcess()
    except OSError:
        return None  # said where it is needed


def _cache_folder() -> Path:
    """The folder where Triton keeps kernels."""
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


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
    compiled = triton.compile(source, target=job.target, options=job.options)
    if job.target.backend == "cuda":
        _build_launcher(source, compiled.metadata)


def _build_launcher(source: Any, metadata: Any) -> None:
    """Builds what launches a kernel: up to 3.6, Triton runs a C compiler at the first launch of every signature, a
    quarter of a second each."""
    from triton.backends.nvidia import driver

    if hasattr(driver, "make_launcher"):
        driver.CudaLauncher(source, metadata)


def _build_driver() -> None:
    """Builds what all launches need, for which Triton runs a C compiler, too."""
    from triton.backends.nvidia import driver

    with contextlib.suppress(Exception):  # said where something is launched
        driver.CudaUtils()


def hash_triton() -> None:
    """Triton finds compiled kernels by a hash of itself, of half a gigabyte, once in every process. Other threads can
    work meanwhile."""
    from triton.runtime import cache

    # Not every version has it by this name.
    getattr(cache, "triton_key", lambda: "")()


def prepare() -> None:
    """Does once what every child would do."""
    with large_imports():
        importlib.import_module("triton.compiler.code_generator")
        threads = [threading.Thread(target=target) for target in (hash_triton, _build_driver)]
        for thread in threads:
            thread.start()
        for name in _FIRST_IMPORTS:
            importlib.import_module(name)
    for thread in threads:
        thread.join()  # a process with threads had better not fork


def main() -> None:
    jobs, answers = sys.stdin.buffer, answer_pipe()
    prepare()
    most, num_running = min(MAX_NUM_CHILDREN, len(os.sched_getaffinity(0))), 0
    while (frame := read_frame(jobs)) is not None:
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


def _compile_and_exit(frame: bytes) -> None:
    try:
        compile_kernel(KernelJob(*pickle.loads(frame)))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
