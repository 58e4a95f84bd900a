"""Compiles the kernels of a pass side by side, before it is run.

Triton compiles a kernel when it is launched for the first time, and the launch waits: a pass that needs eighty kernels
compiles them one after the other. Run inside `compiled_ahead`, it only shows which ones it needs. Nothing is launched,
so that its results are whatever was in memory.
"""

import os
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

# Set to 1, it is used. Not by default: kernels have been compiled this way, but no GPU has been started with them yet.
SWITCH = "FACET_COMPILE_AHEAD"
# Most of the compiler is C++ that does without Python's lock, and its last part a process of its own.
MAX_NUM_THREADS = 16


def is_wanted() -> bool:
    return os.environ.get(SWITCH) == "1"


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """What is launched inside is compiled instead, and is ready when the block ends.

    A kernel that cannot be compiled says so when it is launched for good.
    """
    # Imported here: machines without a GPU need not have it.
    from triton.runtime.jit import JITFunction

    from facet.kernels.linear.chain import forget_trials

    launch = JITFunction.run
    seen: set[Hashable] = set()
    num_threads = min(MAX_NUM_THREADS, len(os.sched_getaffinity(0)))
    choose_device = partial(torch.cuda.set_device, torch.cuda.current_device())  # every thread has one of its own
    with ThreadPoolExecutor(num_threads, initializer=choose_device) as threads:

        def compile_once(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> None:
            kinds = tuple(map(_kind, args)), tuple((name, _value(value)) for name, value in constants.items())
            if (key := (id(kernel), kinds)) not in seen:
                seen.add(key)
                threads.submit(launch, kernel, *args, grid=grid, warmup=True, **constants)

        # Launches go through this method alone, and Triton has no switch that lets them compile without waiting.
        JITFunction.run = compile_once
        try:
            yield
        finally:
            JITFunction.run = launch
            forget_trials()


def _kind(argument: Any) -> Hashable:
    """What kernels are made for. Arguments of one kind may get the same kernel; of two kinds, they may too."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return argument == 1, argument % 16 == 0, abs(argument) < 2**31
    if hasattr(argument, "block_shape"):  # a tensor descriptor
        return argument.base.dtype, tuple(argument.block_shape)
    return type(argument).__name__


def _value(constant: Any) -> Hashable:
    return constant if isinstance(constant, int | float | str) else id(constant)
