"""Times products with matrices of eight bits on a GPU, by configuration, against bfloat16 and the bytes they read.

    python -m benchmarks.quantized_gpu                  # what the engine would use
    python -m benchmarks.quantized_gpu --tune           # every configuration; the three best of each are printed
    python -m benchmarks.quantized_gpu --rings          # few rows through rings, beside the kernel in Triton
    python -m benchmarks.quantized_gpu --heads          # few rows times heads whose codes are widened, kernel by kernel

Every result is first checked against the definition. Times are of launches inside a CUDA graph that walks over copies
of a matrix, more of them than the second-level cache holds. Inputs are rounded beforehand; `rounding_gpu` times
that.
"""

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from benchmarks.linear_gpu import CACHE_BYTES
from facet.kernels.linear import cases
from facet.kernels.linear.reference import gated_input_linear, geglu_linear
from facet.kernels.quantized import QuantizedMatrix, eight_bits
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.eight_bits import Config, Ring, Sums, Tiles, choose_config, ring_of
from facet.kernels.quantized.eight_bits.config import WIDENED_ROW
from facet.kernels.rounded_rows import RoundedRows

BANDWIDTH = 4.3e6  # bytes a microsecond, of an H200's memory as far as a kernel gets
ROWS = (1, 16, 32, 64, 128, 256, 2048)
ROWS_OF_RINGS, MOST_RING_ROWS = (1, 8), 16
FORMAT_NAMES = {"fp8": "fp8 token", "int8": "int8 token", "fp8-weights": "fp8 rows", "int8-weights": "int8 rows"}
SHAPES = (*cases.LARGE, *cases.E4B)

FEW = (
    Config(0, 64, 128, 4, 6),
    Config(0, 64, 256, 4, 4),
    Config(0, 64, 256, 4, 6),
    Config(0, 64, 512, 4, 3),
    Config(0, 128, 256, 8, 4),
)
SHARES = (1, 2, 3, 4, 6, 8)
# Outputs, inputs of a turn, warps.
WIDENED = tuple(
    replace(WIDENED_ROW, block_out=block_out, block_in=block_in, num_warps=num_warps)
    for block_out, block_in, num_warps in (
        (2, 512, 1),
        (4, 512, 1),
        (8, 256, 1),
        (8, 512, 1),
        (16, 256, 1),
        (4, 1024, 2),
        (8, 512, 2),
        (16, 256, 2),
        (16, 512, 4),
    )
)
TILES = tuple(Tiles(*each) for each in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)))
LEAST_HEAD = 65536  # outputs
MANY = (
    Config(64, 128, 128, 4, 4),
    Config(128, 64, 128, 4, 4),
    Config(128, 128, 128, 4, 3),
    Config(128, 128, 128, 8, 4),
    Config(256, 128, 128, 8, 3),
    Config(128, 256, 128, 8, 3),
)


@dataclass(frozen=True)
class Job:
    shape: cases.Shape
    format: str
    num_rows: int
    config: Config | None  # None: PyTorch's product


def candidates(
    shape: cases.Shape, format: str, num_rows: int, tune: bool, rings: bool, heads: bool
) -> list[Config | None]:
    is_fp8, is_widened = format == "fp8", format.endswith("weights")
    sums: Sums = "widened" if is_widened else "fp8" if is_fp8 else "exact"
    if heads:
        before = choose_config(num_rows, shape.num_out, shape.num_in, sums)
        assert before is not None
        rows = WIDENED if num_rows == 1 else ()
        return [*rows, before, *(replace(before, tiles=tiles) for tiles in TILES)]
    is_plain = shape.operation == "linear"
    chosen = choose_config(num_rows, shape.num_out, shape.num_in, sums, is_plain)
    if rings and chosen is not None and num_rows <= MOST_RING_ROWS and "weights" not in format:
        return [replace(chosen, ring=None), *(replace(chosen, ring=ring) for ring in rings_of(shape, tune))]
    if not tune:
        return [chosen]
    if num_rows > 64:
        return [*MANY, *([None] if is_fp8 else [])]
    found: list[Config | None] = []
    if num_rows == 1 and is_widened and is_plain:
        found += WIDENED
    for config in FEW:
        num_tiles = math.ceil(shape.num_out / config.block_out)
        for shares in SHARES:
            if shares == 1 or (num_tiles * shares <= 800 and shape.num_in >= shares * 2 * config.block_in):
                found.append(replace(config, rows=max(16, num_rows), shares=shares))
    return found


def rings_of(shape: cases.Shape, tune: bool) -> list[Ring]:
    chosen = ring_of(shape.num_out, shape.num_in)
    if not tune:
        return [chosen]
    depths = [(128, 3), (128, 4), (128, 6), (128, 10), (256, 2), (256, 3), (256, 5)]
    most_shares = max(1, 800 // math.ceil(shape.num_out / 64))
    shares = sorted({each for each in (*SHARES, chosen.shares) if each <= most_shares})
    return [Ring(*depth, each) for depth in depths for each in shares if shape.num_in >= each * 2 * depth[0]]


def run(
    shape: cases.Shape, x: Tensor | RoundedRows, matrix: QuantizedMatrix, given: Tensor, config: Config | None
) -> Tensor:
    def choose(num_rows: int, num_out: int, num_in: int, sums: Sums, is_plain: bool = False) -> Config | None:
        return config

    if shape.operation == "gated_input_linear":
        return eight_bits.gated_input_linear(x, matrix, given, choose)
    if shape.operation == "geglu_linear":
        return eight_bits.geglu_linear(x, matrix, choose)
    return eight_bits.linear(x, matrix, choose)


def inputs(
    shape: cases.Shape, format: str, num_rows: int, num_out: int
) -> tuple[Tensor | RoundedRows, Tensor, QuantizedMatrix, Tensor]:
    case = Case(format=FORMATS[FORMAT_NAMES[format]], num_out=num_out, num_in=shape.num_in)
    matrix = case.matrix("cuda")
    x = torch.randn(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
    given = torch.randn(num_rows, num_out, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    rounded = x if matrix.format.rounding is None else eight_bits.round_rows(x, matrix.format)
    plain = x.float() if isinstance(rounded, Tensor) else rounded.codes.float() * rounded.scales
    return rounded, plain, matrix, given


def name_of(config: Config | None) -> str:
    if config is None:
        return "PyTorch"
    kind = ""
    named: Config | Ring | Tiles = config
    if config.ring is not None:
        kind, named = "ring ", config.ring
    elif config.tiles is not None:
        kind, named = "tiles ", config.tiles
    elif config.is_vector:
        kind = "row "
    elif config.by_warpgroups:
        kind = "warpgroups "
    return kind + " ".join(str(number) for number in asdict(named).values() if number is not None)


def compared(got: Tensor, before: Tensor | None, config: Config | None) -> str:
    """How far results are from Triton's of the first kind, `before`. Sums of int8 by int8 are exact; others are added
    in an order of their own."""
    if before is None or config is None or not is_new(config):
        return ""
    distance = float((got.float() - before.float()).norm() / before.float().norm())
    return ", as Triton's" if torch.equal(got, before) else f", {distance:.1e} from Triton's"


def is_new(config: Config) -> bool:
    """Whether it is compared with those before it."""
    return config.ring is not None or config.tiles is not None


def compile_for(job: Job) -> None:
    x, _, matrix, given = inputs(job.shape, job.format, job.num_rows, 256)
    try:
        run(job.shape, x, matrix, given, job.config)
    except Exception as error:
        print(f"{job}: {str(error)[:300]}", flush=True)


def jobs(
    shapes: list[cases.Shape], formats: list[str], rows: list[int], tune: bool, rings: bool, heads: bool
) -> list[Job]:
    found = {}
    for shape in shapes:
        for format in formats:
            for num_rows in rows:
                for config in candidates(shape, format, num_rows, tune, rings, heads):
                    if config is not None:
                        found[shape.num_in, shape.operation, format, config] = Job(shape, format, num_rows, config)
    return list(found.values())


def measure(shape: cases.Shape, format: str, rows: list[int], tune: bool, rings: bool, heads: bool) -> None:
    num_bytes = shape.num_out * shape.num_in
    num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
    for num_rows in rows:
        x, plain, matrix, given = inputs(shape, format, num_rows, shape.num_out)
        num_launches = max(num_copies, min(32, math.ceil(2e9 / num_bytes / max(1, num_rows / 128))))
        copies = [matrix, *(replace(matrix, codes=matrix.codes.clone()) for _ in range(num_copies - 1))]
        values = matrix.values()
        if shape.operation == "gated_input_linear":
            expected = gated_input_linear(plain, values, given.float())
        else:
            expected = (
                geglu_linear(plain, values) if shape.operation == "geglu_linear" else functional.linear(plain, values)
            )
        wide = values.to(torch.bfloat16)
        wides = [wide, *(wide.clone() for _ in range(max(0, math.ceil(num_copies / 2) - 1)))]
        x16 = plain.to(torch.bfloat16)
        del values
        library = microseconds([partial(functional.linear, x16, wides[n % len(wides)]) for n in range(num_launches)])
        floor = max(num_bytes / BANDWIDTH, 2 * num_rows * num_bytes / 1.35e9 if "weights" not in format else 0)
        found, before = [], None
        for config in candidates(shape, format, num_rows, tune, rings, heads):
            try:
                got = run(shape, x, matrix, given, config)
            except Exception as error:
                print(f"{shape.name} {config}: {str(error)[:200]}", flush=True)
                continue
            distance = float((got.float() - expected).norm() / expected.norm())
            if not distance < 1e-2:
                print(f"WRONG: {shape.name}, {format}, {num_rows} rows, {config}: error {distance}", flush=True)
                continue
            launches = [partial(run, shape, x, copies[n % num_copies], given, config) for n in range(num_launches)]
            found.append((microseconds(launches), name_of(config) + compared(got, before, config), distance))
            before = got if config is None or not is_new(config) else before
        for time, name, distance in sorted(found)[: len(found) if heads or (rings and not tune) else 3]:
            print(
                f"{shape.name:25} {format:12} {num_rows:5} rows: {time:7.1f} us, floor {floor:6.1f}, bfloat16 "
                f"{library:7.1f} ({library / time:4.2f}x)  error {distance:.1e}  {name}",
                flush=True,
            )
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="try every configuration")
    parser.add_argument("--rings", action="store_true", help="time rings beside what is chosen, on a Hopper GPU")
    parser.add_argument("--heads", action="store_true", help="time all kernels for heads, on a Hopper GPU")
    parser.add_argument("--formats", nargs="+", choices=list(FORMAT_NAMES))
    parser.add_argument("--shapes", nargs="+", default=[""], help="those whose names contain one of these")
    parser.add_argument("--rows", nargs="+", type=int, help=f"{ROWS}, of rings and heads {ROWS_OF_RINGS}")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    options = parser.parse_args()
    rows = options.rows or list(ROWS_OF_RINGS if options.rings or options.heads else ROWS)
    formats = options.formats or (["int8-weights", "fp8-weights"] if options.heads else ["fp8", "int8"])
    shapes = [shape for shape in SHAPES if any(part in shape.name for part in options.shapes)]
    if options.heads:
        shapes = [shape for shape in shapes if shape.num_out >= LEAST_HEAD]
    kinds = (options.tune, options.rings, options.heads)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_for, jobs(shapes, formats, rows, *kinds)))
    for shape in shapes:
        for format in formats:
            measure(shape, format, rows, *kinds)


if __name__ == "__main__":
    main()
