"""Divides a GPU's memory: what steps need besides the weights, and what is left for keys and values.

`facet plan` and a starting engine both use it. They differ in where three numbers come from: an engine measures
weights, activations and what others take (`measuring.py`), a plan counts the weights and estimates the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from facet.errors import CapacityError
from facet.kernels.paged_attention.decode.plan import PARTIALS_LIMIT
from facet.kernels.paged_attention.prefill.plan import max_scratch_bytes
from facet.kv_layout import KVLayout
from facet.layers.attention import heads_of
from facet.media_span import MediaKind
from facet.model_spec import ModelSpec
from facet.quantity import shown_bytes
from facet.runner.media_inputs import num_table_rows
from facet.runner.tower_graphs import graphs_of
from facet.sampling import max_device_bytes

# Allowed for what a driver keeps of one captured half of a decode step, beside the tensors.
BYTES_PER_GRAPH = 8 << 20
# The same for a piece of a step, which is one layer rather than half of them.
BYTES_PER_PIECE = 256 << 10

# The rows that towers make in one step, unless a single item has more: two pictures of the usual size. Meanwhile nobody
# gets a token: with twice as many, streams of E4B and Gemma 3 12B waited up to 64 and 106 ms on an H200.
MAX_ENCODED_ROWS = 560
LARGEST_ITEM_ROWS = 1120  # of Gemma 4's finest pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerShape:
    """The towers of a model, as far as their memory depends on it."""

    values_per_row: int  # what the largest of them holds at once for every row it makes
    num_table_rows: int  # embeddings of tokens, which are cached beside the rows of media
    num_captured_values: int  # what the largest pass that is captured holds at once


def tower_shape(towers: Mapping[MediaKind, nn.Module]) -> TowerShape | None:
    """What towers need memory for. None: there are no towers."""
    if not towers:
        return None
    specs: list[Any] = [tower.spec for tower in towers.values()]
    return TowerShape(
        values_per_row=max(spec.values_per_row for spec in specs),
        num_table_rows=num_table_rows(towers),
        num_captured_values=max(
            (tower.num_padded_rows * tower.spec.values_per_row for tower in graphs_of(towers)), default=0
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCapacity:
    """The cache of rows that towers made."""

    num_rows: int  # of media
    num_bytes: int  # of these, and of the embeddings that towers have

    def line(self) -> str:
        """A line that is printed at start-up."""
        return (
            f"Encoder cache: {shown_bytes(self.num_bytes)}, {self.num_rows} rows of media; a step encodes up to "
            f"{MAX_ENCODED_ROWS} of them, or one item."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The largest steps an engine runs on one GPU, as far as their memory depends on it."""

    spec: ModelSpec  # of this GPU's share of the model
    vocab_size: int  # of the whole model: what requests forbid or have seen is kept for all tokens
    layout: KVLayout
    value_bytes: int  # of a number as the model computes
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    graph_sizes: tuple[int, ...]
    piece_sizes: tuple[int, ...]
    is_batch_invariant: bool
    towers: TowerShape | None = None
    draft_sizes: tuple[int, ...] = ()  # numbers of requests that a drafter is captured for; empty: none
    has_adapters: bool = False  # steps are captured with and without them

    @property
    def encoder(self) -> EncoderCapacity | None:
        """The room for media: twice what a step computes or encodes, whichever is more. None: there are no towers."""
        if self.towers is None:
            return None
        num_rows = 2 * max(self.max_num_batched_tokens, LARGEST_ITEM_ROWS)
        row_bytes = self.spec.hidden_size * self.value_bytes
        return EncoderCapacity(num_rows=num_rows, num_bytes=(num_rows + self.towers.num_table_rows) * row_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """Where a GPU's memory goes, in bytes."""

    total: int
    weights: int
    activations: int  # the most a step takes for a moment
    graphs: int  # set aside for them before the cache takes the rest
    sampling: int  # the most that requests' settings can make it take
    cache: int
    others: int = 0  # a driver, kernels, gaps between tensors, other processes
    encoder_cache: int = 0
    towers: int = 0  # the most that one takes for a moment
    graphs_taken: int | None = None  # measured once they are captured

    def line(self) -> str:
        def gib(num_bytes: int) -> str:
            return f"{num_bytes / 2**30:.2f}"

        taken = "" if self.graphs_taken is None else f" ({gib(self.graphs_taken)} taken)"
        media = f"towers {gib(self.towers)}, encoder cache {gib(self.encoder_cache)}, " if self.towers else ""
        return (
            f"GPU memory, of {gib(self.total)} GiB: weights {gib(self.weights)}, activations {gib(self.activations)}, "
            f"graphs {gib(self.graphs)}{taken}, sampling {gib(self.sampling)}, "
            f"{media}driver and others {gib(self.others)}, KV cache {gib(self.cache)}; the rest stays free."
        )


def divide_memory(
    shape: StepShape, *, total: int, usable: int, weights: int, activations: int, others: int
) -> GpuMemory:
    """What each user of the memory needs, and what is left for keys and values.

    `usable` bytes may be taken, by weights and others, too; `activations` are of a step without what attention unpacks.
    """
    scratch, graphs = scratch_bytes(shape), 0
    if shape.is_batch_invariant:
        # Shares of keys leave partial results, however many rows there are: in the open, and in captured steps.
        scratch = max(scratch, PARTIALS_LIMIT)
        graphs = PARTIALS_LIMIT if shape.graph_sizes else 0
    graphs += graph_bytes(shape, activations) + piece_bytes(shape, activations) + tower_graph_bytes(shape)
    sampling = max_device_bytes(
        num_seats=shape.max_num_seqs, vocab_size=shape.vocab_size, context_len=shape.max_model_len
    )
    encoder_cache = 0 if shape.encoder is None else shape.encoder.num_bytes
    towers = tower_bytes(shape)
    beside_weights = activations + scratch + graphs + sampling + encoder_cache + towers
    cache = usable - weights - others - beside_weights
    if cache <= 0:
        raise CapacityError(
            f"Weights take {weights / 2**30:.2f} GiB of a GPU, activations, graphs, sampling and media "
            f"{beside_weights / 2**30:.2f} GiB, a driver and others {others / 2**30:.2f} GiB, but "
            f"{usable / 2**30:.2f} GiB of its {total / 2**30:.2f} GiB may be used: nothing is left for keys and "
            "values. Use a larger GPU or smaller weights, or lower --max-num-seqs and --max-num-batched-tokens."
        )
    return GpuMemory(
        total=total,
        weights=weights,
        activations=activations + scratch,
        graphs=graphs,
        sampling=sampling,
        cache=cache,
        others=others,
        encoder_cache=encoder_cache,
        towers=towers,
    )


def tower_bytes(shape: StepShape) -> int:
    """What towers take for a moment: counted from shapes, about, by an engine too."""
    return 0 if shape.towers is None else LARGEST_ITEM_ROWS * shape.towers.values_per_row * shape.value_bytes


def tower_graph_bytes(shape: StepShape) -> int:
    """What captured passes of towers keep for good, beside those of other graphs."""
    if shape.towers is None or not shape.graph_sizes:
        return 0
    return shape.towers.num_captured_values * shape.value_bytes


def scratch_bytes(shape: StepShape) -> int:
    """What attention unpacks keys and values into, at most."""
    return max(
        max_scratch_bytes(
            heads_of(shape.spec.layers[group.stores[0].layer]),
            window=group.window,
            max_context_len=shape.max_model_len,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            element_size=shape.value_bytes,
        )
        for group in shape.layout.groups
    )


def graph_bytes(shape: StepShape, activations: int) -> int:
    """What captured steps keep for good."""
    largest = max(shape.graph_sizes, default=0)
    # The logits twice, as the product leaves them and in float32, and a few rows of everything else.
    logits = largest * shape.spec.vocab_size * (4 + shape.value_bytes)
    num_graphs = 2 * len(shape.graph_sizes) * (1 + shape.has_adapters) + len(shape.draft_sizes)
    return logits + _rows(shape, largest, activations) + num_graphs * BYTES_PER_GRAPH


def piece_bytes(shape: StepShape, activations: int) -> int:
    """What captured pieces of lower layers keep for good: their memory pool, and the buffers where they meet."""
    spec, largest = shape.spec, max(shape.piece_sizes, default=0)
    num_streams = 1 if spec.altup is None else spec.altup.num_streams
    query_widths = {layer.attention: layer.query_width for layer in spec.layers}
    buffers = largest * shape.value_bytes * ((num_streams + 1) * spec.hidden_size + 2 * sum(query_widths.values()))
    num_pieces = len(shape.piece_sizes) * (spec.num_layers + 1) * (1 + shape.has_adapters)
    return buffers + _rows(shape, largest, activations) + num_pieces * BYTES_PER_PIECE


def _rows(shape: StepShape, num_rows: int, activations: int) -> int:
    """The share of a full step's activations that so many rows have."""
    return activations * num_rows // max(shape.max_num_batched_tokens, num_rows, 1)
