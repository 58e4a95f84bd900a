"""A multiprocessor for the emulator of Gluon: partitions of warps that take turns, shared memory, barriers, copies and
products."""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.kernels.ordered_sums import product


class Partitions:
    """The partitions of the program that runs: threads that take turns."""

    def __init__(self) -> None:
        self.begin(seed=0)

    def begin(self, *, seed: int) -> None:
        """Forget everything; draw from this seed on."""
        self.random = random.Random(seed)
        self.lock = threading.Condition()
        self.running: int | None = None
        self.blocked: dict[int, Callable[[], bool]] = {}
        self.waiting: dict[int, str] = {}
        self.alive: set[int] = set()
        self.copies: list[Callable[[], None]] = []
        self.failure: BaseException | None = None
        self.own = threading.local()
        self._begin_partition(0)  # of a program that does not part

    def run(self, calls: Sequence[tuple[Callable[..., None], Sequence[Any]]]) -> None:
        self.alive = set(range(len(calls)))
        threads = [threading.Thread(target=self._partition, args=(index, *call)) for index, call in enumerate(calls)]
        self.running = self.random.choice(sorted(self.alive))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        assert not self.copies, "a copy was never waited for"

    def _begin_partition(self, index: int) -> None:
        self.own.index, self.own.products, self.own.is_apart = index, [], False
        self.own.copies = []

    def end_program(self) -> None:
        assert not self.copies, "a copy was never waited for"
        assert not self.own.products, "a product was never waited for"
        self._begin_partition(0)

    def _partition(self, index: int, function: Callable[..., None], args: Sequence[Any]) -> None:
        self._begin_partition(index)
        try:
            self._await_turn(index)
            function(*args)
            assert not self.own.products, "a product was never waited for"
        except BaseException as error:
            self.failure = self.failure or error
        with self.lock:
            self.alive.discard(index)
            self._next()

    def _await_turn(self, index: int) -> None:
        with self.lock:
            self.lock.wait_for(lambda: self.running == index or self.failure is not None)
        if self.failure is not None:
            raise SystemExit

    def _next(self) -> None:
        """Let copies land or a partition go on, whichever is drawn."""
        while True:
            ready = [index for index in sorted(self.alive) if self.blocked.get(index, lambda: True)()]
            if self.copies and (not ready or self.random.random() < 0.3):
                self.copies.pop(self.random.randrange(len(self.copies)))()
                continue
            break
        if self.alive and not ready and self.failure is None:
            self.failure = AssertionError(f"partitions wait for each other: {self.waiting}")
        self.running = self.random.choice(ready) if ready else None
        self.lock.notify_all()

    def pause(self, until: Callable[[], bool] | None = None, name: str = "") -> None:
        """Somebody else's turn, perhaps; and not this one's again before `until` holds."""
        if not self.alive:  # before the partitions part, or where they never do
            is_held_up = until is not None and not until()
            while self.copies and (is_held_up or self.random.random() < 0.3):
                self.copies.pop(self.random.randrange(len(self.copies)))()
                is_held_up = until is not None and not until()
            assert not is_held_up, f"nobody arrives: {name}"
            return
        index = self.own.index
        with self.lock:
            if until is not None:
                self.blocked[index], self.waiting[index] = until, name
            self._next()
        self._await_turn(index)
        self.blocked.pop(index, None)
        self.waiting.pop(index, None)

    @property
    def products(self) -> list["Product"]:
        return self.own.products  # type: ignore[no-any-return]

    def touch(self) -> None:
        """Shared memory was read or written: other warps may be behind."""
        self.own.is_apart = True


PARTITIONS = Partitions()


class Shared:
    """A view of shared memory, and of which of its numbers were written and not fenced yet.

    What a partition stored has its number, from one on, and is fenced by that partition. What threads copied has
    COPIED and a bit for every partition, each of which fences it for itself.
    """

    def __init__(self, numbers: Tensor, unfenced: Tensor) -> None:
        self.numbers, self.unfenced = numbers, unfenced

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    @property
    def shape(self) -> torch.Size:
        return self.numbers.shape

    def _both(self, change: Callable[[Tensor], Tensor]) -> "Shared":
        return Shared(change(self.numbers), change(self.unfenced))

    def index(self, index: int) -> "Shared":
        return self._both(lambda tensor: tensor[index])

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        return self._both(lambda tensor: tensor.narrow(dim, start, length))

    def permute(self, order: Sequence[int]) -> "Shared":
        return self._both(lambda tensor: tensor.permute(*order))

    def reshape(self, shape: Sequence[int]) -> "Shared":
        return self._both(lambda tensor: tensor.view(*shape))

    def _reinterpret(self, dtype: torch.dtype, shape: Sequence[int], _layout: object) -> "Shared":
        assert dtype == self.numbers.dtype
        return self.reshape(shape)

    def load(self, _layout: object) -> Tensor:
        PARTITIONS.touch()
        return self.numbers.clone()

    def store(self, values: Tensor) -> None:
        assert values.dtype == self.numbers.dtype
        assert values.shape == self.numbers.shape
        PARTITIONS.touch()
        self.numbers.copy_(values)
        self.unfenced.fill_(1 + PARTITIONS.own.index)


# Of numbers that threads copied, and that no partition has fenced.
COPIED = 64
_BY_ALL = COPIED + COPIED - 1

# Of the program that runs.
ALLOCATIONS: list[Shared] = []


def allocate_shared_memory(dtype: object, shape: Sequence[int], _layout: object) -> Any:
    if dtype == torch.int64:  # barriers alone have this type
        return Barriers([Barrier() for _ in range(shape[0])])
    assert isinstance(dtype, torch.dtype)
    numbers = torch.full(tuple(shape), float("nan") if dtype.is_floating_point else 0x77, dtype=dtype)
    shared = Shared(numbers, torch.zeros(tuple(shape), dtype=torch.int8))
    ALLOCATIONS.append(shared)
    return shared


@dataclass(eq=False)
class Barrier:
    count: int = 0
    pending: int = 0
    num_bytes: int = 0
    phase: int = 0

    def settle(self) -> None:
        if self.pending == 0 and self.num_bytes == 0:
            self.phase ^= 1
            self.pending = self.count


@dataclass
class Barriers:
    members: list[Barrier]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.members), 1

    def index(self, index: int) -> "Barriers":
        return Barriers([self.members[index]])


def init_barrier(barriers: Barriers, count: int) -> None:
    (barrier,) = barriers.members
    barrier.count = barrier.pending = count


def expect_bytes(barriers: Barriers, num_bytes: int) -> None:
    (barrier,) = barriers.members
    assert barrier.pending > 0
    barrier.num_bytes += num_bytes
    barrier.pending -= 1
    PARTITIONS.pause()


def arrive(barriers: Barriers, *, count: int = 1) -> None:
    (barrier,) = barriers.members
    assert not PARTITIONS.own.is_apart, "arrived while other warps of the partition may be behind"
    assert barrier.pending >= count, "arrived too often"
    barrier.pending -= count
    barrier.settle()
    PARTITIONS.pause()


def wait(barriers: Barriers, phase: int) -> None:
    (barrier,) = barriers.members
    assert phase in (0, 1)
    PARTITIONS.pause(lambda: barrier.phase != phase, f"phase {phase} of {barrier}")


@dataclass(kw_only=True)
class TensorDescriptor:
    base: Tensor
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    layout: object

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @classmethod
    def from_tensor(cls, tensor: Tensor, block_shape: Sequence[int], layout: object) -> "TensorDescriptor":
        return cls(base=tensor, shape=tensor.shape, strides=tensor.stride(), block_shape=block_shape, layout=layout)


def copy_tile(source: TensorDescriptor, first: Sequence[int], barriers: Barriers, target: Shared) -> None:
    """Zeros where the tile reaches beyond the tensor."""
    (barrier,) = barriers.members
    assert tuple(target.numbers.shape) == tuple(source.block_shape)
    assert all(start >= 0 for start in first)
    assert not PARTITIONS.own.is_apart, "copied to what other warps of the partition may still read"
    tile = torch.zeros(tuple(source.block_shape), dtype=source.base.dtype)
    inside = tuple(
        slice(start, min(start + size, limit))
        for start, size, limit in zip(first, source.block_shape, source.shape, strict=True)
    )
    part = source.base.as_strided(source.shape, source.strides)[inside]
    if part.numel():
        tile[tuple(slice(0, length) for length in part.shape)] = part
    target.numbers.fill_(float("nan"))

    def land() -> None:
        target.numbers.copy_(tile)
        target.unfenced.zero_()
        barrier.num_bytes -= tile.nbytes
        barrier.settle()

    PARTITIONS.copies.append(land)
    PARTITIONS.pause()


def copy_to_shared(target: Shared, pointer: Any) -> None:
    """By the threads of a partition, all of whose numbers are copied together."""
    numbers = pointer.numbers[pointer.offset]
    assert (numbers.dtype, numbers.shape) == (target.numbers.dtype, target.numbers.shape)
    target.numbers.fill_(float("nan"))
    is_landed = [False]

    def land() -> None:
        target.numbers.copy_(numbers)
        target.unfenced.fill_(_BY_ALL)
        is_landed[0] = True

    PARTITIONS.copies.append(land)
    PARTITIONS.own.copies.append(is_landed)
    PARTITIONS.pause()


def arrive_after_copies(barriers: Barriers, *, increment_count: bool) -> None:
    """Once for each of four warps' threads, when what was copied before has landed: at the latest moment."""
    assert not increment_count, "the count is made up for at once, which may complete the barrier too early"
    (barrier,) = barriers.members
    before, PARTITIONS.own.copies = PARTITIONS.own.copies, []

    def land() -> None:
        if not all(is_landed for (is_landed,) in before):
            PARTITIONS.copies.append(land)
            return
        assert barrier.pending >= 128, "arrived too often"
        barrier.pending -= 128
        barrier.settle()

    PARTITIONS.copies.append(land)
    PARTITIONS.pause()


def fence_async_shared() -> None:
    index = PARTITIONS.own.index
    for shared in ALLOCATIONS:
        unfenced = shared.unfenced
        unfenced[unfenced == 1 + index] = 0
        unfenced[unfenced >= COPIED] &= ~(1 << index)


def thread_barrier() -> None:
    PARTITIONS.own.is_apart = False
    PARTITIONS.pause()


@dataclass(eq=False)
class Product:
    """One under way, with its operands as they were when it began."""

    a: Shared
    b: Shared
    start: "Tensor | Product | None"
    before: tuple[Tensor, Tensor] = field(init=False)
    result: Tensor | None = None

    def __post_init__(self) -> None:
        for operand in (self.a, self.b):
            unfenced, own = operand.unfenced, 1 << PARTITIONS.own.index
            is_copied = unfenced >= COPIED
            assert not unfenced[~is_copied].any(), "stored numbers reach a product without a fence"
            assert not (unfenced[is_copied] & own).any(), "copied numbers reach a product without a fence"
        self.before = (self.a.numbers.clone(), self.b.numbers.clone())
        assert not any(numbers.isnan().any() for numbers in self.before), "a product reads what has not landed"

    def finish(self) -> None:
        for operand, numbers in zip((self.a, self.b), self.before, strict=True):
            assert torch.equal(operand.numbers, numbers), "an operand changed under a product"
        start = self.start.result if isinstance(self.start, Product) else self.start
        sums = product(*self.before)
        self.result = sums if start is None else start + sums


def warpgroup_mma(a: Shared, b: Shared, start: Any, *, use_acc: bool = True, is_async: bool = False) -> Product:
    assert is_async
    product = Product(a, b, start if use_acc else None)
    PARTITIONS.products.append(product)
    PARTITIONS.pause()
    return product


def warpgroup_mma_wait(num_outstanding: int = 0, deps: Sequence[Any] = ()) -> Any:
    PARTITIONS.pause()
    products = PARTITIONS.products
    while len(products) > num_outstanding:
        products.pop(0).finish()
    PARTITIONS.touch()
    # Sums that are not made yet can be waited for again, and nothing else.
    results = [dep.result if isinstance(dep, Product) and dep.result is not None else dep for dep in deps]
    return results[0] if len(results) == 1 else tuple(results)
