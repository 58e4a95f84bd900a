"""One thread, and an interpreter of Triton without what it computes in vain."""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """The tensors here are small, and on a busy machine threads would mostly wait for each other."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="package", autouse=True)
def _interpreter_without_idle_work() -> Iterator[None]:
    """Before a launch, Triton's interpreter looks through its language and puts its own functions into it. It does so
    again whenever one function of a kernel calls another, though all is in place. For every sum and product of integers
    it computes whether they overflow, and without its option `debug` does not look at the outcome."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", _unless_prepared(interpreter._patch_lang))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield


def _unless_prepared(prepare: Callable[[FunctionType], Any]) -> Callable[[FunctionType], Any]:
    import triton.language as tl

    languages: dict[FunctionType, list[ModuleType]] = {}

    def prepare_once(function: FunctionType) -> Any:
        """What it returns is only used by a launch, which finds its language as Triton wrote it."""
        if function not in languages:
            named = function.__globals__.values()
            languages[function] = [value for value in named if value is tl or value is tl.core]
        if any(tl.core.is_builtin(language.load) for language in languages[function]):
            return prepare(function)
        return None

    return prepare_once
