"""Times the kernels between matrix products on a GPU at the shapes of E4B and 31B, and their share of bandwidth.

    python -m benchmarks.glue_gpu [--warps 4 8 16]

Each is first checked against its reference. Then many calls are captured in one CUDA graph, over several sets of inputs
so that large ones do not stay in the cache, and the graph is replayed: what is left of a launch is what a decode step
pays. Bytes are those an operation must move, each input read once and each output written once, held against a plain
copy measured in the same run. `--warps` times the norms with other numbers of warps as well.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from facet.kernels import add_norm, embedding, geglu, logits, per_layer_input, rms_norm
from facet.kernels.add_norm import triton as add_norm_triton
from facet.kernels.rms_norm import triton as rms_norm_triton
from facet.kernels.rms_norm.triton import RowTile, row_tile
from facet.kernels.tolerance import Tolerance

EPS = 1e-6
NUM_ROWS = (1, 32, 128, 512, 2048, 8192)
INVARIANT = "batch-invariant"
VOCAB_SIZE = 262_144
WIDTH = 256  # of a per-layer input
NUM_LAYERS = 24  # of E4B, below those that share keys: the most whose inputs a step makes at once
BYTES_PAST_CACHE = 2**28  # several times the L2 of a large card
TOLERANCE = Tolerance(absolute=2**-5, relative=2**-6, why="roundings to bfloat16 may fall on the other side")

Run = Callable[[], Tensor | tuple[Tensor | None, ...]]


@dataclass(frozen=True)
class Operation:
    """`make` returns the fast call and the reference's on one fresh set of inputs."""

    name: str
    num_bytes: int
    make: Callable[[], tuple[Run, Run]]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def weight(width: int) -> Tensor:
    return torch.rand(width, device="cuda") + 0.5


def norms(num_rows: int, hidden: int) -> Iterator[Operation]:
    row_bytes = num_rows * hidden * 2

    def make_norm() -> tuple[Run, Run]:
        x, factor = normal(num_rows, hidden), weight(hidden)
        return lambda: rms_norm.rms_norm(x, factor, EPS), lambda: rms_norm.reference.rms_norm(x, factor, EPS)

    def make_add(run: Callable[..., tuple[Tensor, Tensor | None]]) -> tuple[Run, Run]:
        arguments = (normal(num_rows, hidden), normal(num_rows, hidden), weight(hidden), weight(hidden), EPS)
        scale = torch.full((1,), 0.75, device="cuda", dtype=torch.bfloat16)
        return lambda: run(*arguments, scale), lambda: add_norm.reference.add_norm(*arguments, scale)

    yield Operation(f"rms_norm {hidden}", 2 * row_bytes, make_norm)
    yield Operation(f"add_norm {hidden}", 4 * row_bytes, partial(make_add, add_norm.add_norm))
    yield Operation(f"add_norm {hidden}, {INVARIANT}", 4 * row_bytes, partial(make_add, add_norm.invariant_add_norm))


def other_norms(num_rows: int) -> Iterator[Operation]:
    def make_heads() -> tuple[Run, Run]:
        """Eight query heads in the output of one projection for queries, keys and values."""
        x, factor = normal(num_rows, 12, 256)[:, :8], weight(256)
        return lambda: rms_norm.rms_norm(x, factor, EPS), lambda: rms_norm.reference.rms_norm(x, factor, EPS)

    def make_router_norms(run: Callable[..., tuple[Tensor, Tensor | None]]) -> tuple[Run, Run]:
        """Against norms in Triton and products in PyTorch."""
        x, own, scale, factor = normal(num_rows, 2816), weight(2816), weight(2816).bfloat16(), 2816**-0.5
        return (
            lambda: run(x, scale, factor, own, EPS),
            lambda: (rms_norm.rms_norm(x, None, EPS) * scale * factor, rms_norm.rms_norm(x, own, EPS)),
        )

    def make_sum(run: Callable[..., Tensor]) -> tuple[Run, Run]:
        arguments = (normal(num_rows, 2816), weight(2816), normal(num_rows, 2816), weight(2816), EPS)
        return lambda: run(*arguments), lambda: add_norm.reference.sum_of_norms(*arguments)

    yield Operation("rms_norm 8 x 256", 2 * num_rows * 8 * 256 * 2, make_heads)
    num_bytes = 3 * num_rows * 2816 * 2
    for mark, run in (("", rms_norm.router_norms), (f", {INVARIANT}", rms_norm.invariant_router_norms)):
        yield Operation(f"router_norms 2816{mark}", num_bytes, partial(make_router_norms, run))
    for mark, add in (("", add_norm.sum_of_norms), (f", {INVARIANT}", add_norm.invariant_sum_of_norms)):
        yield Operation(f"sum_of_norms 2816{mark}", num_bytes, partial(make_sum, add))


def activations(num_rows: int, width: int) -> Iterator[Operation]:
    def make() -> tuple[Run, Run]:
        gate_up = normal(num_rows, 2 * width)
        return lambda: geglu.geglu(gate_up), lambda: geglu.reference.geglu(gate_up)

    yield Operation(f"geglu {width}", 3 * num_rows * width * 2, make)


def per_layer_inputs(num_rows: int, table: Tensor) -> Iterator[Operation]:
    shape = (num_rows, NUM_LAYERS, WIDTH)
    scales = dict(context_scale=2560**-0.5, eps=EPS)

    def make_look_up() -> tuple[Run, Run]:
        context, factor = normal(*shape), weight(WIDTH)
        ids = torch.randint(table.shape[0], (num_rows,), device="cuda")
        options = dict(scales, first_column=2 * WIDTH, token_scale=16.0)
        return (
            lambda: per_layer_input.mix_looked_up_inputs(context, ids, table, factor, **options),
            lambda: per_layer_input.reference.mix_looked_up_inputs(context, ids, table, factor, **options),
        )

    def make_gate() -> tuple[Run, Run]:
        gate, one_of_many = normal(num_rows, WIDTH), normal(*shape)[:, 3]
        return (
            lambda: per_layer_input.gate_per_layer_input(gate, one_of_many),
            lambda: per_layer_input.reference.gate_per_layer_input(gate, one_of_many),
        )

    yield Operation("mix_looked_up_inputs", 3 * num_rows * NUM_LAYERS * WIDTH * 2, make_look_up)
    yield Operation("gate_per_layer_input", 3 * num_rows * WIDTH * 2, make_gate)


def ends(num_rows: int, hidden: int, table: Tensor) -> Iterator[Operation]:
    def make_embed() -> tuple[Run, Run]:
        ids = torch.randint(table.shape[0], (num_rows,), device="cuda")
        part = table[:, :hidden]
        return lambda: embedding.embed(ids, part, 50.5), lambda: embedding.reference.embed(ids, part, 50.5)

    def make_cap() -> tuple[Run, Run]:
        values = 20 * normal(num_rows, VOCAB_SIZE)
        return lambda: logits.softcap(values, 30.0), lambda: logits.reference.softcap(values, 30.0)

    yield Operation(f"embed {hidden}", 2 * num_rows * hidden * 2, make_embed)
    if num_rows <= 128 and hidden == 2560:  # no step wants the logits of thousands of rows
        yield Operation("softcap", num_rows * VOCAB_SIZE * (2 + 4), make_cap)


def operations(table: Tensor) -> Iterator[tuple[int, Operation]]:
    for num_rows in NUM_ROWS:
        for operation in (
            *norms(num_rows, 2560),
            *norms(num_rows, 5376),
            *other_norms(num_rows),
            *activations(num_rows, 10240),
            *activations(num_rows, 21504),
            *per_layer_inputs(num_rows, table),
            *ends(num_rows, 2560, table),
            *ends(num_rows, 5376, table),
        ):
            yield num_rows, operation


def results(value: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [part for part in value if part is not None]


def check(operation: Operation) -> None:
    fast, reference = operation.make()
    for got, expected in zip(results(fast()), results(reference()), strict=True):
        assert got.dtype == expected.dtype
        # About 64 rows: float64 copies of everything would take most of the time.
        stride = max(1, len(got) // 64)
        TOLERANCE.check(got[::stride], expected[::stride])


def microseconds_of(operation: Operation) -> float:
    """One call's share of a captured graph of calls, which take turns with so much memory that no cache holds it."""
    num_sets = min(8, max(2, -(-BYTES_PAST_CACHE // operation.num_bytes)))
    runs = [operation.make()[0] for _ in range(num_sets)]
    num_calls = 64 if operation.num_bytes < 2**24 else num_sets * 2
    for run in runs:
        run()
    return microseconds([runs[call % num_sets] for call in range(num_calls)], 10)


def copy_ceiling() -> float:
    """Bytes per second, read and written, of a copy far larger than any cache."""
    source = torch.randint(2**31, (2**28,), device="cuda", dtype=torch.int32)
    target = torch.empty_like(source)
    copy = Operation("copy", 2 * source.nbytes, lambda: (lambda: target.copy_(source), lambda: target))
    return copy.num_bytes / microseconds_of(copy) * 1e6


def print_warps(all_warps: list[int], console: Console) -> None:
    """The norms with every number of warps, and with weights read early and late: for choosing `row_tile`."""
    table = Table(title="norms by warps (a: weights ahead, l: late): µs")
    kinds = [(warps, ahead) for warps in all_warps for ahead in (True, False)]
    for column in ("rows", "operation", *(f"{warps}{'a' if ahead else 'l'}" for warps, ahead in kinds)):
        table.add_column(column, justify="left" if column == "operation" else "right", no_wrap=True)
    for num_rows in NUM_ROWS:
        for operation in (*norms(num_rows, 2560), *norms(num_rows, 5376)):
            cells = []
            for warps, ahead in kinds:

                def forced(width: int, num_rows: int, warps: int = warps, ahead: bool = ahead) -> RowTile:
                    return row_tile(width, num_rows)._replace(num_warps=warps, weights_ahead=ahead)

                with (
                    mock.patch.object(rms_norm_triton, "row_tile", forced),
                    mock.patch.object(add_norm_triton, "row_tile", forced),
                ):
                    time = microseconds_of(operation)
                cells.append(f"{time:.2f}" if num_rows < 1000 else f"{time:.1f}")
            table.add_row(str(num_rows), operation.name, *cells)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warps", type=int, nargs="*", default=[], help="also time the norms with these warps")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    console = Console(width=110)
    ceiling = copy_ceiling()
    table = Table(title=f"{torch.cuda.get_device_name()}: copy {ceiling / 1e12:.2f} TB/s, read and written")
    for column in ("rows", "operation", "µs", "TB/s", "of copy"):
        table.add_column(column, justify="left" if column == "operation" else "right", no_wrap=True)
    # Wider than the layers here: columns of a table are a slice of its rows.
    looked_up = normal(VOCAB_SIZE, (NUM_LAYERS + 4) * WIDTH)
    for num_rows, operation in operations(looked_up):
        check(operation)
        time = microseconds_of(operation)
        moved = operation.num_bytes / time * 1e6
        table.add_row(str(num_rows), operation.name, f"{time:.2f}", f"{moved / 1e12:.2f}", f"{moved / ceiling:.0%}")
    console.print(table)
    if arguments.warps:
        print_warps(arguments.warps, console)


if __name__ == "__main__":
    main()
