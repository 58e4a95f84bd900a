"""Runs Gluon kernels on a CPU, one program after another: what Triton's interpreter does for Triton.

A kernel's own source is executed with another `gl`: tensors are torch's, layouts mean nothing, and the partitions of
`warp_specialize` are threads of which one runs at a time. Which one goes on, and when a copy in flight lands, is drawn
at random at every barrier, copy and product. What a GPU would only do wrong now and then is an error here:

- a product whose operands change between its start and the wait for it, or whose sums are read before;
- a tile that is read while a copy into it is in flight: it holds NaN until the copy lands;
- numbers that were stored and not fenced before a product reads them;
- a barrier arrived at while other warps of the partition may still read or write what is handed over;
- partitions that wait for each other for ever.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.kernels import gluon_machine as machine

PROGRAM = SimpleNamespace(ids=(0, 0, 0), sizes=(1, 1, 1))


class Int(int):
    """A number as a kernel loads it: it has a method to be widened with."""

    def to(self, _dtype: object) -> "Int":
        return self


def _int_operator(name: str) -> Callable[[int, object], object]:
    plain = getattr(int, name)

    def operator(self: int, other: object) -> object:
        result = plain(self, other)
        return Int(result) if type(result) is int else result

    return operator


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "and", "xor"):
    setattr(Int, f"__{_name}__", _int_operator(f"__{_name}__"))


@dataclass
class Pointer:
    numbers: Tensor  # flat
    offset: Any = 0

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.numbers, self.offset + offset)

    @property
    def shape(self) -> torch.Size:
        return self.offset.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=self.numbers.dtype)


def _load(
    pointer: Pointer, mask: Any = None, other: float = 0.0, eviction_policy: str = "", cache_modifier: str = ""
) -> Any:
    if not isinstance(pointer.offset, Tensor):
        number = pointer.numbers[pointer.offset]
        return number.clone() if number.is_floating_point() else Int(number.item())
    offsets = pointer.offset
    if mask is None:
        return pointer.numbers[offsets]
    mask = torch.broadcast_to(mask, offsets.shape)
    values = pointer.numbers[torch.where(mask, offsets, 0)]
    return torch.where(mask, values, torch.tensor(other, dtype=values.dtype))


def _store(pointer: Pointer, values: Any, mask: Any = None) -> None:
    if not isinstance(values, Tensor):
        pointer.numbers[pointer.offset] = values
        return
    mask = torch.broadcast_to(torch.tensor(True) if mask is None else mask, values.shape)
    pointer.numbers[torch.broadcast_to(pointer.offset, values.shape)[mask]] = values[mask]


def _atomic_add(pointer: Pointer, number: int, sem: str, scope: str) -> Int:
    before = Int(pointer.numbers[pointer.offset].item())
    pointer.numbers[pointer.offset] += number
    return before


class Constant:
    """`gl.constexpr`: an annotation, and a value that is known when a kernel is compiled."""

    def __new__(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            return value
        instance = super().__new__(cls)
        instance.value = value  # type: ignore[attr-defined]
        return instance


def _layout(*_args: object, **_kwargs: object) -> object:
    return SimpleNamespace()


def _plain(number: Any) -> Any:
    """A number, or what a constant of Triton's holds."""
    return getattr(number, "value", number)


def _either(scalar: Callable[..., Any], tensor: Callable[..., Tensor]) -> Callable[..., Any]:
    def operation(*args: Any) -> Any:
        if any(isinstance(arg, Tensor) for arg in args):
            return tensor(*(arg if isinstance(arg, Tensor) else torch.tensor(_plain(arg)) for arg in args))
        result = scalar(*args)
        return Int(result) if isinstance(result, int) else result

    return operation


def _memory(tensor: Tensor) -> Tensor:
    """From its first number to its last, with what lies between."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span if tensor.numel() else 0,), (1,))


class Kernel:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, num_warps: int, maxnreg: int | None = None, **kwargs: Any) -> None:
            sizes = (*grid, 1, 1)[:3]
            given = [Pointer(_memory(arg)) if isinstance(arg, Tensor) else arg for arg in args]
            for ids in product(*map(range, sizes)):
                PROGRAM.ids, PROGRAM.sizes = ids, sizes
                machine.ALLOCATIONS.clear()
                self.function(*given, **kwargs)
                machine.PARTITIONS.end_program()

        return launch


def _jit(function: Callable[..., Any] | None = None, **_options: object) -> Any:
    return _jit_decorator if function is None else Kernel(function)


def _jit_decorator(function: Callable[..., Any]) -> Kernel:
    return Kernel(function)


def _language() -> ModuleType:
    module = ModuleType("gluon_language")
    module.gl = SimpleNamespace(  # type: ignore[attr-defined]
        NVMMASharedLayout=SimpleNamespace(get_default_for=_layout),
        NVMMADistributedLayout=_layout,
        SwizzledSharedLayout=_layout,
        BlockedLayout=_layout,
        DotOperandLayout=_layout,
        SliceLayout=_layout,
        allocate_shared_memory=machine.allocate_shared_memory,
        arange=lambda start, end, _layout: torch.arange(start, end),
        atomic_add=_atomic_add,
        bfloat16=torch.bfloat16,
        cdiv=lambda a, b: Int(-(-a // b)),
        constexpr=Constant,
        convert_layout=lambda tensor, _layout, assert_trivial=False: tensor,
        exp=torch.exp,
        exp2=torch.exp2,
        expand_dims=lambda tensor, dim: tensor.unsqueeze(dim),
        float16=torch.float16,
        float8e4nv=torch.float8_e4m3fn,
        fma=lambda a, b, c: (a.double() * b + c).float(),
        float32=torch.float32,
        full=lambda shape, value, dtype, _layout: torch.full(tuple(shape), _plain(value), dtype=dtype),
        int32=torch.int32,
        int64=torch.int64,
        join=lambda first, second: torch.stack((first, second), dim=-1),
        load=_load,
        max=lambda tensor, dim: tensor.amax(dim),
        max_contiguous=lambda tensor, _count: tensor,
        maximum=_either(max, torch.maximum),
        minimum=_either(min, torch.minimum),
        multiple_of=lambda tensor, _count: tensor,
        permute=lambda tensor, order: tensor.permute(*order),
        reshape=lambda tensor, shape: tensor.reshape(*shape),
        rsqrt=torch.rsqrt,
        split=lambda tensor: tensor.unbind(-1),
        num_programs=lambda axis: PROGRAM.sizes[axis],
        program_id=lambda axis: Int(PROGRAM.ids[axis]),
        static_range=range,
        store=_store,
        uint8=torch.uint8,
        sum=lambda tensor, dim: tensor.sum(dim),
        warp_specialize=lambda calls, _warps, _registers: machine.PARTITIONS.run(calls),
        where=_either(lambda condition, a, b: a if condition else b, torch.where),
        zeros=lambda shape, dtype, _layout: torch.zeros(tuple(shape), dtype=dtype),
    )
    module.gluon = SimpleNamespace(jit=_jit, constexpr_function=lambda function: function)  # type: ignore[attr-defined]
    module.mbarrier = SimpleNamespace(  # type: ignore[attr-defined]
        MBarrierLayout=_layout,
        init=machine.init_barrier,
        expect=machine.expect_bytes,
        arrive=machine.arrive,
        wait=machine.wait,
    )
    for name in (
        "TensorDescriptor",
        "arrive_after_copies",
        "copy_tile",
        "copy_to_shared",
        "fence_async_shared",
        "thread_barrier",
        "warpgroup_mma",
        "warpgroup_mma_wait",
    ):
        setattr(module, name, getattr(machine, name))
    return module


def emulated(
    names: Sequence[str],
    *languages: str,
    seed: int = 0,
    change: tuple[str, str] | None = None,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> ModuleType:
    """The last of some modules, executed with the names here, and `own`, in place of those of the modules `languages`.

    They are executed in the order given, each with those before it. A `change` is made to their source, which has to
    be there: a fault that ought to be found.
    """
    machine.PARTITIONS.begin(seed=seed)
    real = {name: sys.modules.get(name) for name in (*names, *languages)}
    stand_in = _language()
    vars(stand_in).update(own)
    sys.modules.update(dict.fromkeys(languages, stand_in))
    is_changed = change is None
    try:
        for name in names:
            spec = importlib.util.find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            source = Path(spec.origin).read_text()
            if change is not None and change[0] in source:
                source, is_changed = source.replace(*change), True
            sys.modules[name] = module = ModuleType(name)
            exec(compile(source, spec.origin, "exec"), module.__dict__)
    finally:
        for name, before in real.items():
            if before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = before
    assert is_changed, f"no module says {change}"
    return module
