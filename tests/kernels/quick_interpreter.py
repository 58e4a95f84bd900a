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
    """Kernels compute the same, in a third of the time.

    Before a launch, the interpreter looks through Triton's language and puts its own functions into it. It does so
    again whenever one function of a kernel calls another, though all is in place. For every sum and product of integers
    it computes whether they overflow, and without its option `debug` does not look at the outcome. For every value it
    wraps each number of its shape anew, and lists all types to find that of NumPy. It finds the common type of two
    values by long rules again and again, and copies the smaller one to the shape of the larger, which NumPy need not.

    Only products differ, in their last bits: they are those of `ordered_sums.py`.
    """
    from triton.language import core
    from triton.runtime import interpreter

    builder, semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic
    assert not builder.options.debug
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", _unless_prepared(interpreter._patch_lang))
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        patch.setattr(interpreter, "_get_np_dtype", _once_per_type(interpreter._get_np_dtype))
        patch.setattr(core.block_type, "__init__", _type_of_known_shape(core.block_type.__init__))
        patch.setattr(core.tensor, "__init__", _tensor_of_known_shape(core.tensor.__init__))
        patch.setattr(core.block_type, "name", _NameOfBlock(), raising=False)
        patch.setattr(core, "_unwrap_if_constexpr", _unwrapped(core._unwrap_if_constexpr))
        patch.setattr(core.dtype, "__eq__", _equal_types(core.dtype.__eq__))
        patch.setattr(core.dtype, "is_int", _is_int)
        patch.setattr(interpreter, "_patch_attr", _quick_members)
        patch.setattr(interpreter.TensorHandle, "__init__", _checked_handle())
        patch.setattr(builder, "create_expand_dims", _with_one_more_size)
        patch.setattr(builder, "create_dot", _product_in_any_order(builder.create_dot))
        for name, quick in _quick_operands(semantic).items():
            patch.setattr(semantic, name, quick)
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


class _NameOfBlock:
    """Of a type that was made without one: written when somebody asks."""

    def __get__(self, block: Any, owner: Any) -> str:
        return f"<{tuple(block.shape.values)}, {block.element_ty}>"


def _type_of_known_shape(make: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    from triton.language.core import constexpr
    from triton.language.core import tuple as sizes_type

    known: dict[tuple[int, ...], dict[str, Any]] = {}

    def make_from_known(self: Any, element_ty: Any, shape: Any) -> None:
        given = shape.values if type(shape) is sizes_type else shape
        sizes = tuple([size.value if isinstance(size, constexpr) else size for size in given])
        if sizes in known:
            self.__dict__.update(known[sizes])
            self.element_ty = element_ty
        else:
            make(self, element_ty, shape)
            of_tensor = sizes_type([constexpr(size) for size in sizes]), constexpr(self.numel)
            known[sizes] = {"shape": self.shape, "numel": self.numel, "of_tensor": of_tensor}

    return make_from_known


def _tensor_of_known_shape(make: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    from triton.language import core

    of_number = core.tuple([]), core.constexpr(1)

    def make_from_known(self: Any, handle: Any, type: Any) -> None:
        is_block = type.is_block()
        if is_block and not hasattr(type, "of_tensor"):
            make(self, handle, type)
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = type.of_tensor if is_block else of_number

    return make_from_known


def _unwrapped(unwrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    from triton.language.core import constexpr, tensor

    plain = {tensor, int, float, bool, str, type(None)}

    def unwrap_unless_plain(value: Any) -> Any:
        kind = type(value)
        if kind in plain:
            return value
        return value.value if kind is constexpr else unwrap(value)

    return unwrap_unless_plain


def _equal_types(are_equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda one, other: one is other or are_equal(one, other)


_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)) | {"int1"}


def _is_int(dtype: Any) -> bool:
    return dtype.name in _INTEGERS


def _quick_members(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """A function of the language as a kernel calls it: without a copy of its arguments."""
    from triton.language import core
    from triton.runtime.interpreter import interpreter_semantic

    # What stands around every such function only asks for the argument that is given here.
    is_plain = member.__code__ in set(core.builtin.__code__.co_consts)
    function = member.__wrapped__ if is_plain else member

    def quick_member(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(obj, name, quick_member)


def _checked_handle() -> Callable[..., None]:
    def make(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if not dtype.is_ptr() and data.itemsize * 8 > max(dtype.primitive_bitwidth, 8):
            raise ValueError(f"numbers of {data.itemsize} bytes are no {dtype}")

    return make


def _with_one_more_size(value: Any, axis: int) -> Any:
    from triton.runtime.interpreter import TensorHandle

    sizes = value.data.shape
    return TensorHandle(value.data.reshape(*sizes[:axis], 1, *sizes[axis:]), value.dtype.scalar)


def _product_in_any_order(multiply: Callable[..., Any]) -> Callable[..., Any]:
    import numpy as np
    from triton.runtime.interpreter import TensorHandle

    def multiply_in_double(a: Any, b: Any, d: Any, *options: Any) -> Any:
        if any(operand.dtype.primitive_bitwidth == 8 or not operand.dtype.is_floating() for operand in (a, b)):
            return multiply(a, b, d, *options)
        sums = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
        return TensorHandle(sums + d.data, d.dtype.scalar)

    return multiply_in_double


def _quick_operands(semantic: Any) -> dict[str, Callable[..., Any]]:
    """What is done to the operands of every sum, product and comparison."""
    import numpy as np
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    tensor, block_type = core.tensor, core.block_type
    check, cast = semantic.binary_op_type_checking_impl, semantic.cast
    find_type = semantic.computation_type_impl
    numpy_types = {
        **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
        **{f"fp{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    }
    found: dict[tuple[str, bool, str, bool, bool], Any] = {}

    def find_type_once(a_type: Any, a_is_scalar: bool, b_type: Any, b_is_scalar: bool, div_or_mod: bool) -> Any:
        key = a_type.name, a_is_scalar, b_type.name, b_is_scalar, div_or_mod
        if key not in found:
            found[key] = find_type(a_type, a_is_scalar, b_type, b_is_scalar, div_or_mod)
        return found[key]

    def cast_unless_same(input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
        return input if input.dtype is dst_ty else cast(input, dst_ty, fp_downcast_rounding)

    def constant(value: Any, dtype: Any) -> Any:
        return tensor(TensorHandle(np.array([value], numpy_types[dtype.name]), dtype), dtype)

    def common_sizes(lhs: Any, rhs: Any) -> list[int]:
        left = lhs.type.shape.values if lhs.type.is_block() else []
        right = rhs.type.shape.values if rhs.type.is_block() else []
        if left == right or not right:
            return left
        if not left:
            return right
        if len(left) < len(right):
            left = [1] * (len(right) - len(left)) + left
        elif len(right) < len(left):
            right = [1] * (len(left) - len(right)) + right
        sizes = [one if other == 1 else other for one, other in zip(left, right, strict=True)]
        if any(one not in (1, size) for one, size in zip(left, sizes, strict=True)):
            raise ValueError(f"operands of shapes {left} and {right}")
        return sizes

    def is_of_shape(value: Any, sizes: list[int]) -> bool:
        return value.type.shape.values == sizes if value.type.is_block() else not sizes

    def as_of_same_shape(lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """Only said to be so: NumPy computes with them as if they were."""
        sizes = common_sizes(lhs, rhs)
        if not is_of_shape(lhs, sizes):
            lhs = tensor(lhs.handle, block_type(lhs.dtype, sizes))
        if not is_of_shape(rhs, sizes):
            rhs = tensor(rhs.handle, block_type(rhs.dtype, sizes))
        return lhs, rhs

    def of_shape(value: Any, sizes: list[int]) -> Any:
        if is_of_shape(value, sizes):
            return value
        data = np.empty(sizes, value.handle.data.dtype)
        data[...] = value.handle.data
        return tensor(TensorHandle(data, value.handle.dtype.scalar), block_type(value.dtype, sizes))

    def of_same_shape(lhs: Any, rhs: Any) -> tuple[Any, Any]:
        sizes = common_sizes(lhs, rhs)
        return of_shape(lhs, sizes), of_shape(rhs, sizes)

    def quick_check(
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Any, Any]:
        is_left, is_right = isinstance(lhs, tensor), isinstance(rhs, tensor)
        if is_left and is_right:
            left, right = lhs.dtype, rhs.dtype
            if left.is_ptr() or right.is_ptr():
                semantic.check_ptr_type_impl(left, right, allow_lhs_ptr)
                semantic.check_ptr_type_impl(right, left, allow_rhs_ptr)
            elif arithmetic_check and (left is not right or div_or_mod):
                common = find_type_once(left, False, right, False, div_or_mod)
                lhs, rhs = cast_unless_same(lhs, common), cast_unless_same(rhs, common)
            return as_of_same_shape(lhs, rhs)
        if arithmetic_check and (is_left or is_right):
            value, number = (lhs, rhs) if is_left else (rhs, lhs)
            dtype = value.dtype
            if type(number) in (int, float) and dtype.name in numpy_types:
                common = find_type_once(dtype, False, semantic.to_tensor_type(number), True, div_or_mod)
                is_fitting = not common.is_int() or common.get_int_min_value() <= number <= common.get_int_max_value()
                if is_fitting and common.name in numpy_types:
                    value, other = as_of_same_shape(cast_unless_same(value, common), constant(number, common))
                    return (value, other) if is_left else (other, value)
        return check(lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    return {
        "binary_op_type_checking_impl": quick_check,
        "broadcast_impl_value": of_same_shape,
        "computation_type_impl": find_type_once,
        "cast": cast_unless_same,
    }
