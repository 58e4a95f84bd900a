"""Times the experts of a layer of 26B-A4B on a GPU in bfloat16, FP8 and INT4, against the bytes that they read.

    python -m benchmarks.experts_gpu                         # what the engine would use
    python -m benchmarks.experts_gpu --rows 1 32 --tune      # also other tunings of INT4; the best three are printed

Results in INT4 are first checked against bfloat16 products with the same values. Times are of launches inside a CUDA
graph, each with other choices of experts, so that what one launch read is not in the second-level cache for the next.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from facet.kernels import moe
from facet.kernels.quantized import QuantizedMatrix, eight_bits, int4
from facet.kernels.quantized.cases import FORMATS
from facet.kernels.quantized.int4 import experts
from facet.kernels.quantized.int4.tuning import Tuning
from facet.kernels.quantized.random_codes import fill_random
from facet.matrix_format import MatrixFormat, ScaleFormat

NUM_EXPERTS, NUM_CHOSEN, HIDDEN, WIDTH = 128, 8, 2816, 704
SHAPES = ((NUM_EXPERTS, 2 * WIDTH, HIDDEN), (NUM_EXPERTS, HIDDEN, WIDTH))
BANDWIDTH = 4.3e6  # bytes a microsecond that an H200 reads at best
NUM_LAUNCHES = 16
INT4 = MatrixFormat(codes="int4", scales=ScaleFormat(dtype="bfloat16", group=32))
FP8 = FORMATS["fp8 token"]
TUNINGS = tuple(
    Tuning(tiles=tiles, num_out_warps=num_out_warps, num_in_warps=num_in_warps)
    for tiles, num_out_warps, num_in_warps in ((1, 1, 4), (2, 1, 4), (1, 2, 2), (2, 2, 2), (1, 4, 1), (2, 4, 1))
)

RunExperts = Callable[[Tensor, Tensor, Tensor], Tensor]


def matrices(format: MatrixFormat) -> tuple[QuantizedMatrix, QuantizedMatrix]:
    generator = torch.Generator("cuda").manual_seed(0)
    gate_up, down = (QuantizedMatrix.empty(format, shape, torch.device("cuda")) for shape in SHAPES)
    for matrix in (gate_up, down):
        fill_random(matrix, generator)
    return gate_up, down


def time_of(run: RunExperts, x: Tensor, weights: Tensor, choices: Sequence[Tensor]) -> float:
    return microseconds([partial(run, x, weights, chosen) for chosen in choices])


def show(name: str, num_rows: int, time: float, value_bytes: float, choices: Sequence[Tensor], how: str = "") -> None:
    num_read = sum(chosen.unique().numel() for chosen in choices) / len(choices)  # type: ignore[no-untyped-call]
    num_bytes = num_read * 3 * HIDDEN * WIDTH * value_bytes
    print(
        f"{name:9} {num_rows:5} rows {time:8.1f} us; {num_read:5.1f} experts are read, {num_bytes / time / 1e6:5.2f} "
        f"TB/s, floor {num_bytes / BANDWIDTH:6.1f} us {how}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=(1, 2, 8, 32, 128, 1024, 8192))
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    in_four, in_eight = matrices(INT4), matrices(FP8)
    values = tuple(matrix.values().bfloat16() for matrix in in_four)
    shuffled = (int4.shuffle(in_four[0], is_gated=True), int4.shuffle(in_four[1]))
    runs: dict[str, tuple[RunExperts, float]] = {
        "bfloat16": (lambda x, weights, chosen: moe.run_experts(x, weights, chosen, *values), 2),
        "fp8": (lambda x, weights, chosen: eight_bits.run_experts(x, weights, chosen, *in_eight), 1),
        "int4": (lambda x, weights, chosen: int4.run_experts(x, weights, chosen, *shuffled), 4.5 / 8),
    }
    print(f"{torch.cuda.get_device_name()}, experts of one layer of Gemma 4 26B-A4B")
    for num_rows in options.rows:
        x = torch.randn(num_rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
        weights = torch.rand(num_rows, NUM_CHOSEN, device="cuda")
        odds = torch.rand(NUM_LAUNCHES, num_rows, NUM_EXPERTS, device="cuda")
        choices = odds.argsort(-1)[..., :NUM_CHOSEN].contiguous().unbind(0)
        expected = runs["bfloat16"][0](x, weights, choices[0]).float()

        def check(got: Tensor, how: str, expected: Tensor = expected) -> None:
            distance = float((got.float() - expected).norm() / expected.norm())
            if not distance < 1e-2:
                print(f"WRONG: int4 {how}: relative error {distance}")

        check(runs["int4"][0](x, weights, choices[0]), f"{num_rows} rows")
        for name, (run, value_bytes) in runs.items():
            show(name, num_rows, time_of(run, x, weights, choices), value_bytes, choices)
        if options.tune and num_rows <= 1024:
            tuned: list[tuple[float, str]] = []
            for first in TUNINGS:
                for second in TUNINGS:
                    run_tuned = partial(_tuned, shuffled, (first, second))
                    check(run_tuned(x, weights, choices[0]), f"{first}, {second}")
                    tuned.append((time_of(run_tuned, x, weights, choices), f"{first}, {second}"))
            for time, how in sorted(tuned)[:3]:
                show("int4", num_rows, time, 4.5 / 8, choices, how)


def _tuned(
    shuffled: tuple[int4.ShuffledInt4, int4.ShuffledInt4],
    tunings: tuple[Tuning, Tuning],
    x: Tensor,
    weights: Tensor,
    chosen: Tensor,
) -> Tensor:
    return experts.run_few(x, weights, chosen, *shuffled, tunings)


if __name__ == "__main__":
    main()
