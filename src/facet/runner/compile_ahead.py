"""Compiles the kernels of a pass side by side, before it is run.

Triton compiles a kernel when it is launched for the first time, and the launch waits: a pass that needs eighty kernels
compiles them one after the other. Run inside `compiled_ahead`, it only shows which ones it needs: those that are not in
Triton's cache on disk are compiled by another process. Nothing is launched, so that results are whatever was in memory.
"""

import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import facet.kernels
from facet.runner.compile_process import MARK, CannotBeSent, CompileProcess, KernelJob, hash_triton
from facet.version import __version__

logger = logging.getLogger(__name__)


class CompileAhead:
    """What a start compiles ahead.

    A start that ended leaves a mark in Triton's cache, and one like it has nothing to compile. If that turns out to be
    wrong, kernels are compiled as they are launched.
    """

    def __init__(self, like: object, begun: CompileProcess | None = None) -> None:
        """`like` tells starts apart that may need other kernels, by what it is written as. `begun`: a process that is
        there already (`begin_early`)."""
        self._mark = _mark(like)
        self._process = begun
        self._is_any_submitted = False
        # Triton does it when it looks for its first kernel, compiled or not; here it does so while weights load.
        self._hashing = threading.Thread(target=hash_triton, daemon=True)
        self._hashing.start()
        self.is_needed = _is_known() and not self._mark.exists()
        if not self.is_needed:
            self._stop()
        elif self._process is None:
            try:
                self._process = CompileProcess()  # now, so that it imports while weights load
            except OSError as error:
                self._fail(error)

    def wait_for_hash(self) -> None:
        """Waits for the hash by which Triton looks for kernels: to be called before the first launch, which would make
        it once more."""
        self._hashing.join()

    def end(self) -> None:
        """Ends the compiling: all kernels are there."""
        self._stop()
        try:
            self._mark.parent.mkdir(parents=True, exist_ok=True)
            self._mark.touch()
        except OSError:
            logger.debug("Triton's cache is not writable: the next start compiles all kernels again.")

    @contextmanager
    def compiled_ahead(self) -> Iterator[None]:
        """What is launched inside is compiled instead, and is ready when the block ends.

        A kernel that cannot be compiled, or only in the process that launches it, is left to its first launch.
        """
        # Imported here: machines without a GPU need not have it.
        from triton.runtime.jit import JITFunction

        from facet.kernels.linear.chain import forget_trials

        launch, compile_now = JITFunction.run, JITFunction._do_compile
        seen: set[tuple[int, Any]] = set()

        def show(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
            launch(kernel, *args, grid=grid, warmup=True, **constants)

        def compile_elsewhere(
            kernel: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any, attributes: Any, _: bool
        ) -> None:
            if (id(kernel), key) in seen:
                return
            seen.add((id(kernel), key))
            *_, target, backend, _ = kernel.device_caches[device]
            source = kernel.ASTSource(kernel, signature, constants, attributes)
            if not _is_compiled(source, backend, options):
                self._submit(
                    KernelJob(
                        kernel, kernel.ASTSource, signature, constants, attributes, target, dict(options.__dict__)
                    )
                )

        # Launches go through these methods alone, and Triton has no switch that lets them compile without waiting.
        JITFunction.run, JITFunction._do_compile = show, compile_elsewhere
        try:
            yield
        finally:
            JITFunction.run, JITFunction._do_compile = launch, compile_now
            forget_trials()
        self._wait()

    def _submit(self, job: KernelJob) -> None:
        try:
            if self._process is not None:
                self._process.submit(job)
                self._is_any_submitted = True
        except CannotBeSent as error:
            logger.debug("A kernel is compiled when it is launched: %s", error)
        except OSError as error:
            self._fail(error)

    def _wait(self) -> None:
        """Waits for the process, but not if it has nothing to do and may still be importing."""
        try:
            if self._process is not None and self._is_any_submitted:
                self._process.wait()
                self._is_any_submitted = False
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._stop()
        logger.warning("Kernels are compiled one after the other, which takes longer: %s.", error)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _mark(like: object) -> Path:
    """A file by whose name a start knows that one like it has ended here, with the same kernels."""
    from triton import __version__ as triton_version
    from triton import knobs

    changed = max(path.stat().st_mtime_ns for path in Path(facet.kernels.__file__).parent.rglob("*.py"))
    text = repr((__version__, changed, triton_version, torch.__version__, like))
    return Path(knobs.cache.dir) / f"{MARK}{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _is_known() -> bool:
    """Whether this Triton has by name what is needed here; 3.6 and 3.7 have."""
    from triton import _C
    from triton.runtime import cache, jit

    needed = (
        (jit.JITFunction, "_do_compile"),
        (cache, "get_cache_key"),
        (getattr(_C, "libtriton", None), "get_cache_invalidating_env_vars"),
    )
    return all(hasattr(holder, name) for holder, name in needed)


def _is_compiled(source: Any, backend: Any, options: Any) -> bool:
    """Whether Triton will find it on disk."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.runtime.cache import get_cache_key, get_cache_manager

    key = get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
    cache = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    name = f"{source.name[:150]}.json"
    return name in (cache.get_group(name) or {})
