"""Times all that follows attention in a layer, for one row on a GPU: in one launch, and one kernel after another.

    python -m benchmarks.after_attention_gpu

Times are of launches inside a CUDA graph, several layers in turn, so that weights are read from memory; the floor is
their bytes at 4.26 TB/s. The bits of both ways are compared.
"""

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_timing import microseconds
from facet.kernels.after_attention import Weights, after_attention, can_run
from facet.kernels.after_attention.plan import Sizes
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic

LAYERS = {
    "E4B, sliding": Sizes(2560, 2048, 10240, 256),
    "E4B, global": Sizes(2560, 4096, 10240, 256),
    "12B": Sizes(3840, 4096, 15360, 0),
    "31B": Sizes(5376, 8192, 21504, 0),
}
NUM_LAYERS = 6
BYTES_PER_MICROSECOND = 4.26e6


def make(sizes: Sizes) -> Weights:
    def values(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5

    def norm() -> torch.Tensor:
        return torch.rand(sizes.hidden, device="cuda") + 0.5

    return Weights(
        output=values(sizes.hidden, sizes.queries),
        output_norm=norm(),
        gate_up_norm=norm(),
        gate_up=values(2 * sizes.mlp, sizes.hidden),
        down=values(sizes.hidden, sizes.mlp),
        down_norm=norm(),
        gate=values(sizes.per_layer, sizes.hidden) if sizes.per_layer else None,
        projection=values(sizes.hidden, sizes.per_layer) if sizes.per_layer else None,
        projection_norm=norm() if sizes.per_layer else None,
        eps=1e-6,
    )


def one_after_another(
    arithmetic: Arithmetic,
    attended: torch.Tensor,
    stream: torch.Tensor,
    given: torch.Tensor | None,
    weights: Weights,
    next_norm: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    add_norm, eps = arithmetic.add_norm, weights.eps
    update = arithmetic.linear(attended, weights.output)
    stream, h = add_norm(stream, update, weights.output_norm, weights.gate_up_norm, eps, None)
    assert h is not None
    update, norm = arithmetic.linear(arithmetic.geglu_linear(h, weights.gate_up), weights.down), weights.down_norm
    if weights.gate is not None and weights.projection is not None and weights.projection_norm is not None:
        assert given is not None
        stream, _ = add_norm(stream, update, norm, None, eps, None)
        gated = arithmetic.gated_input_linear(stream, weights.gate, given)
        update, norm = arithmetic.linear(gated, weights.projection), weights.projection_norm
    return add_norm(stream, update, norm, next_norm, eps, None)


def main() -> None:
    table = Table(title=f"{torch.cuda.get_device_name()}, bfloat16, one row, µs a layer")
    for column in ("layer", "floor", "one launch", "usual kernels", "chains", "bits of chains"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for name, sizes in LAYERS.items():
        torch.manual_seed(0)
        layers = [make(sizes) for _ in range(NUM_LAYERS)]
        attended = torch.randn(1, sizes.queries, device="cuda", dtype=torch.bfloat16)
        stream = torch.randn(1, sizes.hidden, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(1, sizes.per_layer, device="cuda", dtype=torch.bfloat16) if sizes.per_layer else None
        assert can_run(attended, layers[0])

        def in_one(weights: Weights, attended=attended, stream=stream, given=given) -> object:  # type: ignore[no-untyped-def]
            return after_attention(attended, stream, given, weights, weights.output_norm)

        def in_several(
            arithmetic: Arithmetic, weights: Weights, attended=attended, stream=stream, given=given
        ) -> object:  # type: ignore[no-untyped-def]
            return one_after_another(arithmetic, attended, stream, given, weights, weights.output_norm)

        products = (layers[0].output, layers[0].gate_up, layers[0].down, layers[0].gate, layers[0].projection)
        floor = sum(product.numel() * 2 for product in products if product is not None) / BYTES_PER_MICROSECOND
        are_same = all(
            all(
                torch.equal(ours, theirs)
                for ours, theirs in zip(in_one(weights), in_several(BATCH_INVARIANT, weights), strict=True)
            )  # type: ignore[call-overload]
            for weights in layers
        )
        times = [
            microseconds([lambda weights=weights, call=call: call(weights) for weights in layers * 6])  # type: ignore[misc]
            for call in (
                in_one,
                lambda weights, run=in_several: run(USUAL, weights),
                lambda weights, run=in_several: run(BATCH_INVARIANT, weights),
            )
        ]
        table.add_row(name, f"{floor:.1f}", *(f"{time:.1f}" for time in times), "same" if are_same else "OTHER")
        Console(width=120).print(f"{name}: floor {floor:.1f}, {times}, {'same' if are_same else 'OTHER'} bits")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
