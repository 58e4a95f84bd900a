"""A decoder layer over pages, against the same layer written down plainly in float64."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.forward_batch import AttentionRows
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kernels.paged_attention import row_places
from facet.kernels.rotary import rotary_table
from facet.kernels.tolerance import Tolerance
from facet.kv_layout import make_kv_layout
from facet.layers.attention import KindStep, PlannedAttention, heads_of
from facet.layers.decoder_layer import DecoderLayer
from facet.layers.kv_arena import KVArena
from facet.layers.placement import Placement
from facet.layers.rms_norm import Residual, RMSNorm
from facet.model.families import read_model_spec
from facet.model_spec import LayerSpec, ModelSpec
from tests.tiny_checkpoints import SHRUNK

NUM_ROWS = 14  # past the window of six
CLOSE = Tolerance(absolute=2e-4, relative=2e-4, why="float32 through a whole layer, whose norms enlarge what differs")


def norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def rotated(x: Tensor, layer: LayerSpec) -> Tensor:
    """[rows, heads, head_dim], of which row i stands at position i. Pair j is (j, j + head_dim / 2)."""
    out, half = x.clone(), layer.head_dim // 2
    for pair in range(layer.rotary.num_rotated_pairs(layer.head_dim)):
        frequency = layer.rotary.theta ** (-2 * pair / layer.head_dim) / layer.rotary.factor
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequency
        low, high = x[..., pair], x[..., pair + half]
        out[..., pair] = low * angles.cos() - high * angles.sin()
        out[..., pair + half] = high * angles.cos() + low * angles.sin()
    return out


@dataclass(frozen=True)
class PlainLayer:
    """The numbers of a layer in float64, by name."""

    spec: ModelSpec
    layer: LayerSpec
    values: dict[str, Tensor]

    def matrix(self, name: str) -> Tensor:
        return self.values[f"{name}.weight.values"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return norm(x, self.values[f"{name}.weight"], self.spec.norm_eps)

    def forward(self, x: Tensor, per_layer_input: Tensor | None) -> Tensor:
        x = x + self.norm(self.attended(self.norm(x, "input_norm")), "post_attention_norm")
        update = self.feed_forward(x)
        x = x + self.norm(update, "post_mlp_norm")
        if per_layer_input is not None:
            gated = gelu(x @ self.matrix("per_layer_gate.gate").T) * per_layer_input
            x = x + self.norm(gated @ self.matrix("per_layer_gate.projection").T, "per_layer_gate.norm")
        return x * self.values["layer_scalar"] if self.spec.has_layer_scalar else x

    def attended(self, h: Tensor) -> Tensor:
        layer, eps = self.layer, self.spec.norm_eps
        projected = (h @ self.matrix("attention.projections").T).view(len(h), -1, layer.head_dim)
        raw_queries, raw_keys, raw_values = projected.tensor_split(
            [layer.num_heads, layer.num_heads + layer.num_kv_heads], dim=1
        )
        if layer.values_are_keys:
            raw_values = raw_keys
        queries = rotated(self.norm(raw_queries, "attention.query_norm"), layer)
        keys = rotated(self.norm(raw_keys, "attention.key_norm"), layer)
        values = norm(raw_values, None, eps) if layer.values_are_normed else raw_values
        found = torch.zeros_like(queries)
        for row in range(len(h)):
            first = 0 if layer.window is None else max(0, row + 1 - layer.window)
            for head in range(layer.num_heads):
                shared = head * layer.num_kv_heads // layer.num_heads
                scores = keys[first : row + 1, shared] @ queries[row, head] * layer.attention_scale
                found[row, head] = scores.softmax(0) @ values[first : row + 1, shared]
        return found.flatten(1) @ self.matrix("attention.output").T

    def feed_forward(self, x: Tensor) -> Tensor:
        dense = self.gated_mlp(self.norm(x, "pre_mlp_norm"), self.matrix("mlp.gate_up"), self.matrix("mlp.down"))
        moe = self.layer.moe
        if moe is None:
            return dense
        scaled = norm(x, None, self.spec.norm_eps) * self.values["experts.router_scale"] * x.shape[-1] ** -0.5
        probabilities = (scaled @ self.matrix("experts.router").T).softmax(-1)
        weights, chosen = probabilities.topk(moe.num_chosen)
        weights = weights / weights.sum(-1, keepdim=True) * self.values["experts.expert_scale"][chosen]
        h, routed = self.norm(x, "experts.input_norm"), torch.zeros_like(x)
        for row in range(len(x)):
            for weight, expert in zip(weights[row], chosen[row], strict=True):
                gate_up, down = self.matrix("experts.gate_up")[expert], self.matrix("experts.down")[expert]
                routed[row] += weight * self.gated_mlp(h[row], gate_up, down)
        return self.norm(dense, "dense_branch_norm") + self.norm(routed, "expert_branch_norm")

    @staticmethod
    def gated_mlp(h: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (h @ gate_up.T).chunk(2, dim=-1)
        return (gelu(gate) * up) @ down.T


class Scene:
    """A layer with random weights, one sequence from its first token on, and pages for its keys."""

    def __init__(self, name: str, index: int, arithmetic: Arithmetic = USUAL) -> None:
        self.spec = read_model_spec(SHRUNK[name])
        self.layer = self.spec.layers[index]
        placement = Placement(dtype=torch.float32, device=torch.device("cpu"), arithmetic=arithmetic)
        generator = torch.Generator().manual_seed(index)
        self.module = DecoderLayer(self.spec, self.layer, placement)
        for parameter in self.module.parameters():
            if parameter.dim() == 1:
                parameter.data.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.data.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
        self.next_norm = RMSNorm(self.spec.hidden_size, self.spec.norm_eps, placement)
        self.next_norm.weight.data.uniform_(0.5, 1.5, generator=generator)
        self.x = torch.randn(NUM_ROWS, self.spec.hidden_size, generator=generator)
        per_layer = self.spec.per_layer_input
        self.per_layer_input = per_layer and torch.randn(NUM_ROWS, per_layer.width, generator=generator)
        self.layout = make_kv_layout(self.spec, dtype="float32", min_tokens_per_block=4)
        self.arena = KVArena(self.layout, 1 + NUM_ROWS, "cpu")
        self.arena.poison(torch.arange(1 + NUM_ROWS))

    def plain(self) -> PlainLayer:
        values = {name: parameter.double() for name, parameter in self.module.named_parameters()}
        return PlainLayer(self.spec, self.layer, values)

    def step(self, first: int, end: int) -> KindStep:
        """Rows first .. end - 1."""
        layer, arithmetic = self.layer, self.module.arithmetic
        (index,) = (i for i, group in enumerate(self.layout.groups) if group.kind == layer.attention)
        group = self.layout.groups[index]
        table = torch.arange(1, 1 + NUM_ROWS, dtype=torch.int32)[None]
        rows = AttentionRows(
            positions=torch.arange(first, end, dtype=torch.int32),
            seats=torch.zeros(end - first, dtype=torch.int32),
            block_tables=(table,),
            host_query_lens=(end - first,),
            host_context_lens=(end,),
            host_prompt_lens=(end - first - 1,),
        )
        plan = arithmetic.plan_attention(
            rows, table, heads_of(layer), window=layer.window, tokens_per_block=group.tokens_per_block
        )
        angles = rotary_table(
            NUM_ROWS,
            head_dim=layer.head_dim,
            num_pairs=layer.rotary.num_rotated_pairs(layer.head_dim),
            theta=layer.rotary.theta,
            factor=layer.rotary.factor,
            dtype=torch.float32,
        )
        blocks, slots = row_places(rows, table, tokens_per_block=group.tokens_per_block)
        return KindStep(
            heads=heads_of(layer),
            attend=PlannedAttention({layer.attention: plan}),
            cos_sin=angles[first:end],
            cos_sin_table=angles,
            write_blocks=blocks,
            write_slots=slots,
        )

    @torch.inference_mode()
    def run(self, first: int, end: int, *, normed: Tensor | None = None, is_stored: bool = False) -> Residual:
        residual: Residual = self.module(
            Residual(self.x[first:end], normed),
            None if self.per_layer_input is None else self.per_layer_input[first:end],
            self.step(first, end),
            self.arena.layer(self.layer.index),
            self.module.attention,
            self.next_norm,
            is_stored=is_stored,
        )
        return residual


# Sliding and global layers; per-layer inputs and a scalar; values that are keys; experts; values as they are projected.
LAYERS = (
    ("Gemma 4 E4B", 0),
    ("Gemma 4 E4B", 5),
    ("Gemma 4 31B", 5),
    ("Gemma 4 26B-A4B", 1),
    ("Gemma 3 1B", 0),
    ("Gemma 3 4B", 5),
)


@pytest.mark.parametrize("arithmetic", [USUAL, BATCH_INVARIANT], ids=["usual", "invariant"])
@pytest.mark.parametrize(("name", "index"), LAYERS)
def test_against_the_plain_layer(name: str, index: int, arithmetic: Arithmetic) -> None:
    scene = Scene(name, index, arithmetic)
    per_layer_input = None if scene.per_layer_input is None else scene.per_layer_input.double()
    expected = scene.plain().forward(scene.x.double(), per_layer_input)
    got = scene.run(0, NUM_ROWS)
    CLOSE.check(got.stream, expected)
    CLOSE.check(got.normed, norm(expected, scene.next_norm.weight.double(), scene.spec.norm_eps))


@pytest.mark.parametrize(("name", "index"), LAYERS)
def test_a_prompt_in_chunks_and_a_norm_made_before(name: str, index: int) -> None:
    whole, parts = Scene(name, index), Scene(name, index)
    expected = whole.run(0, NUM_ROWS).stream
    first = parts.run(0, 9).stream
    with torch.inference_mode():
        normed = parts.module.input_norm(parts.x[9:])
    second = parts.run(9, NUM_ROWS, normed=normed).stream
    CLOSE.check(torch.cat((first, second)), expected)


@pytest.mark.parametrize(("name", "index"), LAYERS)
def test_keys_and_values_stored_beforehand(name: str, index: int) -> None:
    """Of all rows the keys and values; of the last row alone the rest."""
    whole, split = Scene(name, index), Scene(name, index)
    expected = whole.run(0, NUM_ROWS).stream
    with torch.inference_mode():
        split.module.store(Residual(split.x, None), split.step(0, NUM_ROWS), split.arena.layer(split.layer.index))
    CLOSE.check(split.run(NUM_ROWS - 1, NUM_ROWS, is_stored=True).stream, expected[-1:])
