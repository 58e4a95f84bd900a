"""Times the two products of 26B-A4B's experts for many rows on a Hopper GPU: the kernel in Triton, and that in Gluon.

    python -m benchmarks.expert_products_gpu
    python -m benchmarks.expert_products_gpu --rows 8192

and how pairs are sorted, for these and for fewer rows, against an older `triton_sorting.py` if there is one at hand:

    git show 513a336:src/facet/kernels/moe/triton_sorting.py > old_sorting.py
    python -m benchmarks.expert_products_gpu --rows --against old_sorting.py

First kernels are compared: all bits have to be the same, and the error against float32 is printed. Times are of
launches inside a CUDA graph, each with other choices of experts. `experts` is all of `run_experts`: sorting, both
products, and adding up.
"""

import argparse
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from facet.kernels.linear.reference import geglu_linear, linear
from facet.kernels.moe import cases, hopper_groups, reference, triton_groups
from facet.kernels.moe.config import TileConfig, choose_tiles
from facet.kernels.moe.groups import Groups
from facet.kernels.moe.hopper_kernel import GROUP_SIZE
from facet.kernels.moe.triton_groups import ExpertMatrices, combine
from facet.kernels.moe.triton_sorting import group_pairs

NUM_LAUNCHES = 3
NUM_SORTS = 24
# Experts whose products are compared with float32.
CHECKED = 2

# Rows whose pairs are sorted: of decode steps, and of prompts.
SORTED_ROWS = (3, 8, 32, 64, 100, 256, 1024, 2048, 4096, 8192, 16384)

# choices, number of experts, size of a group
GroupPairs = Callable[[Tensor, int, int], tuple[Tensor, ...]]
# source, groups, matrices, result, number of choices
Multiply = Callable[[Tensor, Groups, Tensor, Tensor, int | None], None]


def in_triton(
    config: TileConfig, source: Tensor, groups: Groups, matrices: Tensor, result: Tensor, num_chosen: int | None
) -> None:
    triton_groups.multiply_in_triton(source, groups, ExpertMatrices(matrices), result, num_chosen, config)


def relative_error(got: Tensor, source: Tensor, groups: Groups, matrices: Tensor, num_chosen: int | None) -> float:
    """Of the first experts."""
    distance, size = 0.0, 0.0
    for expert, first, end in groups.table.tolist():
        if end and expert < CHECKED:
            pairs = groups.order[first:end].long()
            if num_chosen is None:
                expected, own = linear(source[first:end].float(), matrices[expert].float()), got[pairs]
            else:
                expected = geglu_linear(source[pairs // num_chosen].float(), matrices[expert].float())
                own = got[first:end]
            distance += float((own.float() - expected).square().sum())
            size += float(expected.square().sum())
    return float((distance / size) ** 0.5)


def experts(
    multiply: Multiply, group_size: int, inputs: cases.ExpertInputs, hidden: Tensor, by_pair: Tensor,
    weights: Tensor, chosen: Tensor,
) -> Tensor:  # fmt: skip
    groups = group_pairs(chosen, len(inputs.down), group_size)
    multiply(inputs.x, groups, inputs.gate_up, hidden, chosen.shape[1])
    multiply(hidden, groups, inputs.down, by_pair, None)
    return combine(by_pair, weights)


def sorting_of(file: Path) -> GroupPairs:
    """`group_pairs` of another version, which returns at least an order and a table."""
    spec = importlib.util.spec_from_file_location("other_sorting", file)
    assert spec is not None, f"{file} is no Python file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.group_pairs  # type: ignore[no-any-return]


def measure_sorting(num_rows: int, other: GroupPairs | None) -> None:
    """All ways leave the same order and the same table as the reference."""
    num_experts, num_chosen = 128, 8
    routes = [torch.randn(num_rows, num_experts, device="cuda").topk(num_chosen).indices for _ in range(NUM_SORTS)]
    group_size = choose_tiles(num_rows * num_chosen, num_experts, 2)[0].block_rows
    expected = reference.group_pairs(routes[0], num_experts, group_size)
    line = f"{num_rows:5} rows  sorting"
    for name, group in {"": group_pairs, "before": other}.items():
        if group is not None:
            got = group(routes[0], num_experts, group_size)
            is_same = all(torch.equal(*both) for both in zip(got[:2], expected[:2], strict=True))
            time = microseconds([partial(group, chosen, num_experts, group_size) for chosen in routes])
            line += f"  {name} {time:6.1f} us" + ("" if is_same else " OTHER ORDER")
    print(line, flush=True)


def measure(num_rows: int) -> None:
    case = cases.Case(num_rows=num_rows, hidden=2816, num_experts=128, num_chosen=8, width=704)
    inputs = case.inputs(torch.bfloat16, "cuda")
    routes = [
        reference.route(torch.randn_like(inputs.router_logits), case.num_chosen, inputs.expert_scale)
        for _ in range(NUM_LAUNCHES)
    ]
    num_pairs = num_rows * case.num_chosen
    hidden = torch.empty(num_pairs, case.width, dtype=torch.bfloat16, device="cuda")
    by_pair = torch.empty(num_pairs, case.hidden, dtype=torch.bfloat16, device="cuda")
    small_tiles, tall_tiles = (choose_tiles(pairs * case.num_experts, case.num_experts, 2)[0] for pairs in (32, 512))
    assert tall_tiles.block_rows == GROUP_SIZE
    kernels: dict[str, tuple[Multiply, int]] = {
        f"Triton, {config.block_rows} x {config.block_out}": (partial(in_triton, config), config.block_rows)
        for config in (small_tiles, tall_tiles)
    }
    kernels["Gluon, 128 x 256"] = (hopper_groups.multiply_groups, GROUP_SIZE)
    products = {
        "gate_up": (inputs.x, inputs.gate_up, hidden, case.num_chosen, 4.0 * case.hidden * case.width * num_pairs),
        "down": (hidden, inputs.down, by_pair, None, 2.0 * case.hidden * case.width * num_pairs),
    }
    expected: dict[str, Tensor] = {}
    for name, (multiply, group_size) in kernels.items():
        groups = [group_pairs(chosen, case.num_experts, group_size) for _, chosen in routes]
        line = f"{num_rows:5} rows  {name:18}"
        for product, (source, matrices, result, num_chosen, num_operations) in products.items():
            result.fill_(torch.nan)
            multiply(source, groups[0], matrices, result, num_chosen)
            error = relative_error(result, source, groups[0], matrices, num_chosen)
            is_same = torch.equal(result, expected.setdefault(product, result.clone()))
            time = microseconds([partial(multiply, source, some, matrices, result, num_chosen) for some in groups])
            line += f"  {product} {time:7.1f} us {num_operations / time / 1e6:4.0f} TFLOP/s, error {error:.1e}"
            line += "" if is_same else " OTHER BITS"
            result.copy_(expected[product])
        run = partial(experts, multiply, group_size, inputs, hidden, by_pair)
        output = run(*routes[0])
        is_same = torch.equal(output, expected.setdefault("experts", output))
        time = microseconds([partial(run, *choice) for choice in routes])
        num_operations = sum(operations for *_, operations in products.values())
        line += f"  experts {time:7.1f} us {num_operations / time / 1e6:4.0f} TFLOP/s"
        print(line + ("" if is_same else " OTHER BITS"), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[2048, 4096, 8192])
    parser.add_argument("--against", type=Path, help="another triton_sorting.py")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, experts of one layer of Gemma 4 26B-A4B, bfloat16")
    for num_rows in options.rows:
        measure(num_rows)
    other = None if options.against is None else sorting_of(options.against)
    for num_rows in SORTED_ROWS:
        measure_sorting(num_rows, other)


if __name__ == "__main__":
    main()
