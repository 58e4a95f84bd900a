"""Times the products with 4-bit codes of some layers and the norms between them, each launched on another's heels.

A product alone, over and over, has its own kind before it. In a layer most follow a norm, whose few programs leave the
card to whoever starts early. Attention is left out: the output product takes some of the columns before it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from benchmarks.linear_gpu import CACHE_BYTES
from facet.kernels.add_norm import add_norm
from facet.kernels.quantized import int4
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int4 import Kernels
from facet.kernels.quantized.int4.tuning import Ring, ring_of
from facet.matrix_format import MatrixFormat, ScaleFormat

_NUM_LAYERS = 16
_EPS = 1e-6
_SHARED_BYTES = 227 << 10  # of a multiprocessor


@dataclass(frozen=True)
class Layer:
    name: str
    hidden: int
    inner: int
    num_qkv: int
    num_heads: int  # columns of theirs
    num_per_layer: int = 0


LAYERS = (
    Layer("31B layer", 5376, 21504, 16384, 8192),
    Layer("E4B layer", 2560, 10240, 3072, 2048, num_per_layer=256),
)


@dataclass(frozen=True)
class Matrices:
    qkv: int4.ShuffledInt4
    o: int4.ShuffledInt4
    gate_up: int4.ShuffledInt4
    down: int4.ShuffledInt4
    per_layer: tuple[int4.ShuffledInt4, int4.ShuffledInt4] | None


def make_matrices(layer: Layer, format: MatrixFormat) -> Matrices:
    def shuffled(num_out: int, num_in: int, *, is_gated: bool = False) -> int4.ShuffledInt4:
        return int4.shuffle(Case(format=format, num_out=num_out, num_in=num_in).matrix("cuda"), is_gated=is_gated)

    per_layer = None
    if layer.num_per_layer:
        gate, projection = (layer.num_per_layer, layer.hidden), (layer.hidden, layer.num_per_layer)
        per_layer = shuffled(*gate), shuffled(*projection)
    return Matrices(
        shuffled(layer.num_qkv, layer.hidden),
        shuffled(layer.hidden, layer.num_heads),
        shuffled(2 * layer.inner, layer.hidden, is_gated=True),
        shuffled(layer.hidden, layer.inner),
        per_layer,
    )


def run_layers(
    layer: Layer, layers: Sequence[Matrices], kernels: tuple[Kernels, Kernels], x: Tensor, norm: Tensor, given: Tensor
) -> Tensor:
    """`kernels`: for products of much, and for those of the per-layer input."""
    products, small_products = kernels
    stream, normed = x, x
    for matrices in layers:
        heads = products.multiply(normed, matrices.qkv)[:, : layer.num_heads]
        stream, normed = _add(stream, products.multiply(heads, matrices.o), norm)
        hidden = products.multiply(normed, matrices.gate_up)
        stream, normed = _add(stream, products.multiply(hidden, matrices.down), norm)
        if matrices.per_layer is not None:
            gate, projection = matrices.per_layer
            gated = small_products.multiply(stream, gate, given)
            stream, normed = _add(stream, small_products.multiply(gated, projection), norm)
    return normed


def _add(stream: Tensor, update: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    new, normed = add_norm(stream, update, norm, norm, _EPS)
    assert normed is not None
    return new, normed


def half_ring_of(num_tiles: int, num_blocks: int, num_rows: int) -> Ring:
    """Half as deep as the one that would be chosen."""
    ring = ring_of(num_tiles, num_blocks, num_rows)
    return replace(ring, num_stages=max(2, ring.num_stages // (2 * ring.row_tiles) * ring.row_tiles))


def deepest_ring_of(num_tiles: int, num_blocks: int, num_rows: int) -> Ring:
    """As deep as shared memory allows for without a program less on a multiprocessor."""
    ring = ring_of(num_tiles, num_blocks, num_rows)
    if ring.row_tiles > 1:
        return ring
    num_programs = min(max(2, 24 // ring.num_warps), -(-num_tiles // (ring.tiles * ring.num_out_warps * 132)))
    most_stages = (_SHARED_BYTES // num_programs - 1024 - 128) // ring.bytes_of_turn
    return replace(ring, num_stages=max(ring.num_stages, min(most_stages, -(-num_blocks // ring.num_in_warps) + 2)))


@dataclass(frozen=True)
class OtherRings:
    """The products of `ring`, through other rings than the usual ones."""

    choose: Callable[[int, int, int], Ring]

    def multiply(self, x: Tensor, matrix: int4.ShuffledInt4, per_layer_input: Tensor | None = None, /) -> Tensor:
        from facet.kernels.quantized.int4 import ring

        return ring.multiply(x, matrix, per_layer_input, self.choose(matrix.num_tiles, matrix.num_blocks, x.shape[0]))


def format_of(group: int) -> MatrixFormat:
    """INT4 in such groups; of 16, NVFP4."""
    if group == 16:
        return FORMATS["fp4 coarse"]
    return MatrixFormat(codes="int4", scales=ScaleFormat(dtype="bfloat16", group=group))


def measure(layer: Layer, rows: Sequence[int], group: int) -> None:
    from facet.kernels.quantized.int4 import few_rows, ring, wide

    format = format_of(group)
    first = make_matrices(layer, format)
    products = (first.qkv, first.o, first.gate_up, first.down)
    num_bytes = sum(tensor.nbytes for matrix in products for tensor in matrix.tensors().values())
    sets = [first, *(make_matrices(layer, format) for _ in range(math.ceil(CACHE_BYTES / num_bytes) - 1))]
    layers = [sets[index % len(sets)] for index in range(_NUM_LAYERS)]
    norm = torch.ones(layer.hidden, device="cuda")
    for num_rows in rows:
        ways: dict[str, tuple[Kernels, Kernels]] = {"few_rows": (few_rows, few_rows), "rings": (ring, ring)}
        half, deepest = OtherRings(half_ring_of), OtherRings(deepest_ring_of)
        ways |= {"rings half as deep": (half, half), "rings as deep as can be": (deepest, deepest)}
        usual = "few_rows" if num_rows <= int4.MAX_FEW_ROWS else "wide"
        if usual == "wide":
            ways["wide"] = (wide, wide)
        if layer.num_per_layer:
            ways[f"rings, {usual} for the per-layer input"] = (ring, ways[usual][0])
        x = torch.randn(num_rows, layer.hidden, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(num_rows, max(1, layer.num_per_layer), device="cuda", dtype=torch.bfloat16)
        expected = run_layers(layer, layers, ways["few_rows"], x, norm, given)
        for name, kernels in ways.items():
            is_same = torch.equal(run_layers(layer, layers, kernels, x, norm, given), expected)
            call = partial(run_layers, layer, layers, kernels, x, norm, given)
            time = microseconds([call] * 3) / _NUM_LAYERS
            said = "same bits" if is_same else "OTHER BITS"
            print(f"{layer.name:18} {num_rows:4} rows {time:8.2f} us a layer  {said}  {name}", flush=True)
