"""Triton's interpreter without what it computes in vain, or again and again."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any

import pytest


@contextlib.contextmanager
def quick_interpreter() -> Iterator[None]:
    """Kernels compute the same, in two thirds of the time.

    Before a launch, the interpreter looks through Triton's language and puts its own functions into it. It does so
    again whenever one function of a kernel calls another, though all is in place. For every sum and product of integers
    it computes whether they overflow, and without its option `debug` does not look at the outcome. For every value it
    wraps each number of its shape anew, and lists all types to find that of NumPy.
    """
    from triton.language import core
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", _unless_prepared(interpreter._patch_lang))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        patch.setattr(interpreter, "_get_np_dtype", _once_per_type(interpreter._get_np_dtype))
        patch.setattr(core.block_type, "__init__", _type_of_known_shape(core.block_type.__init__))
        patch.setattr(core.tensor, "__init__", _tensor_of_known_shape())
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


def _once_per_type(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    find_once = functools.cache(find)

    def find_for_elements(dtype: Any) -> Any:
        element = dtype.scalar
        return find(element) if element.is_ptr() else find_once(element)

    return find_for_elements


def _type_of_known_shape(make: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    from triton.language.core import constexpr

    known: dict[tuple[int, ...], tuple[Any, int]] = {}

    def make_from_known(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, constexpr) else size for size in shape])
        if sizes in known:
            self.element_ty = element_ty
            self.shape, self.numel = known[sizes]
            self.name = f"<{sizes}, {element_ty}>"
        else:
            make(self, element_ty, shape)
            known[sizes] = self.shape, self.numel

    return make_from_known


def _tensor_of_known_shape() -> Callable[[Any, Any, Any], None]:
    from triton.language import core

    @functools.cache
    def wrapped(sizes: tuple[int, ...], numel: int) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(numel)

    def make(self: Any, handle: Any, type: Any) -> None:
        self.handle = handle
        self.type, self.dtype = type, type.scalar
        is_block = type.is_block()
        self.shape, self.numel = wrapped(tuple(type.shape.values), type.numel) if is_block else wrapped((), 1)

    return make
