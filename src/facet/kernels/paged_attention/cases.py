"""Batches, inputs and tolerances for checking attention over pages.

Pages are shuffled, lie in memory between those of other layers, and hold NaN wherever no live token of a sequence is:
in other layers' places, in unused slots, in unused pages, and where a window has moved on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention.cache import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.plan import AttentionPlan
from facet.kernels.rotary import apply_rotary, rotary_table
from facet.kernels.tolerance import Tolerance

FLOAT32 = Tolerance(absolute=1e-5, relative=1e-4, why="float32 dot products over a head, then over a context")
BFLOAT16 = Tolerance(absolute=1e-2, relative=2**-6, why="probabilities and results are rounded to bfloat16")
BFLOAT16_SHARED = Tolerance(
    absolute=4e-2,
    relative=2**-6,
    why="a key made from a shared vector is rounded to bfloat16 up to four times, and a score of size 5 that "
    "is off by one part in 256 changes its probability by 2%",
)

Plan = TypeVar("Plan")

_SCORE_DEVIATION = 2.0  # neither flat nor one-hot, so that every visible key matters and every hidden one would


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputs:
    """A batch as kernels take it, and each sequence's keys and values as a formula takes them."""

    queries: Tensor  # [rows, heads, head_dim]
    cache: LayerCache
    rows: AttentionRows
    block_table: Tensor  # [sequences, blocks]
    key_recipe: KeyRecipe | None
    keys: tuple[
        Tensor, ...
    ]  # per sequence [context_len, kv_heads, head_dim]; made by the recipe where vectors are shared
    values: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    tokens_per_block: int
    sequences: tuple[tuple[int, int], ...]  # (query_len, context_len) each
    scale: float = 1.0
    num_rotated_pairs: int | None = None  # of a key made from a shared vector; None: keys and values are separate

    @property
    def heads(self) -> HeadShape:
        return HeadShape(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    @property
    def is_shared(self) -> bool:
        return self.num_rotated_pairs is not None

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        if dtype == torch.float32:
            return FLOAT32
        return BFLOAT16_SHARED if self.is_shared else BFLOAT16

    def first_live(self, query_len: int, context_len: int) -> int:
        """The first position that a row of this sequence may see."""
        return 0 if self.window is None else max(0, context_len - query_len + 1 - self.window)

    def plan(self, inputs: AttentionInputs, make_plan: Callable[..., Plan]) -> Plan:
        """The plan of a batch; all that make plans take the same arguments."""
        return make_plan(
            inputs.rows, inputs.block_table, self.heads, window=self.window, tokens_per_block=self.tokens_per_block
        )

    def attend(self, inputs: AttentionInputs, make_plan: Callable[..., AttentionPlan]) -> Tensor:
        plan = self.plan(inputs, make_plan)
        return plan.run(inputs.queries, inputs.cache, scale=self.scale, key_recipe=inputs.key_recipe)

    def inputs(self, dtype: torch.dtype, device: str = "cpu", seed: int = 0) -> AttentionInputs:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int, deviation: float = 1.0) -> Tensor:
            return (deviation * torch.randn(shape, generator=generator, device=device)).to(dtype)

        query_lens, context_lens = zip(*self.sequences, strict=True)
        block_table, num_pages = self._block_table(generator, device)
        cache = self._empty_cache(num_pages, dtype, device)
        key_recipe = self._key_recipe(max(context_lens), generator, dtype, device)
        all_keys, all_values = [], []
        for sequence, (query_len, context_len) in enumerate(self.sequences):
            values = normal(context_len, self.num_kv_heads, self.head_dim)
            if key_recipe is None:
                keys = normal(context_len, self.num_kv_heads, self.head_dim)
            else:
                keys = apply_rotary(
                    (values.double() * key_recipe.weight.double()),
                    key_recipe.cos_sin[:context_len].double(),
                )
            live = torch.arange(self.first_live(query_len, context_len), context_len, device=device)
            blocks = block_table[sequence, live // self.tokens_per_block].long()
            slots = live % self.tokens_per_block
            cache.keys[blocks, slots] = values[live] if cache.values is None else keys[live]
            if cache.values is not None:
                cache.values[blocks, slots] = values[live]
            all_keys.append(keys)
            all_values.append(values)
        positions = [torch.arange(context - queries, context, device=device) for queries, context in self.sequences]
        # Keys have deviation 1 in each dimension.
        deviation = _SCORE_DEVIATION / (self.scale * self.head_dim**0.5)
        return AttentionInputs(
            queries=normal(sum(query_lens), self.num_heads, self.head_dim, deviation=deviation),
            cache=cache,
            rows=AttentionRows(
                positions=torch.cat(positions).int(),
                seats=torch.repeat_interleave(
                    torch.arange(len(query_lens), dtype=torch.int32, device=device),
                    torch.tensor(query_lens, device=device),
                ),
                block_tables=(block_table,),
                host_query_lens=query_lens,
                host_context_lens=context_lens,
                host_prompt_lens=tuple(length - 1 for length in query_lens),
            ),
            block_table=block_table,
            key_recipe=key_recipe,
            keys=tuple(all_keys),
            values=tuple(all_values),
        )

    def _block_table(self, generator: torch.Generator, device: str) -> tuple[Tensor, int]:
        """Shuffled pages; page 0 belongs to nobody and stands where a block is dead or was never given out."""
        size = self.tokens_per_block
        counts = [-(-context_len // size) for _, context_len in self.sequences]
        num_pages = 2 + sum(counts)
        pages = (1 + torch.randperm(num_pages - 1, generator=generator, device=device)).int()
        table = torch.zeros(len(counts), max(counts) + 1, dtype=torch.int32, device=device)
        start = 0
        for sequence, (count, lens) in enumerate(zip(counts, self.sequences, strict=True)):
            first = self.first_live(*lens) // size
            table[sequence, first:count] = pages[start + first : start + count]
            start += count
        return table, num_pages

    def _empty_cache(self, num_pages: int, dtype: torch.dtype, device: str) -> LayerCache:
        """Views into pages that hold a token of another layer before, between and after the two runs of tokens."""
        size = self.tokens_per_block
        shape = (num_pages, 2 * size + 3, self.num_kv_heads, self.head_dim)
        pages = torch.full(shape, float("nan"), dtype=dtype, device=device)
        values = None if self.is_shared else pages[:, size + 2 : 2 * size + 2]
        return LayerCache(keys=pages[:, 1 : 1 + size], values=values)

    def _key_recipe(
        self, num_positions: int, generator: torch.Generator, dtype: torch.dtype, device: str
    ) -> KeyRecipe | None:
        if self.num_rotated_pairs is None:
            return None
        table = rotary_table(
            num_positions,
            head_dim=self.head_dim,
            num_pairs=self.num_rotated_pairs,
            theta=1e6,
            factor=1.0,
            dtype=dtype,
            device=device,
        )
        weight = torch.rand(self.head_dim, generator=generator, device=device) + 0.5
        return KeyRecipe(weight=weight, cos_sin=table)


CASES = (
    Case(
        name="E4B sliding, decode, contexts from one token to past the window",
        num_heads=8,
        num_kv_heads=2,
        head_dim=256,
        window=512,
        tokens_per_block=16,
        sequences=((1, 1), (1, 17), (1, 512), (1, 513), (1, 900), (1, 40)),
    ),
    Case(
        name="E4B global, two prompts, a later chunk and decode, 40 tokens per block",
        num_heads=8,
        num_kv_heads=2,
        head_dim=512,
        window=None,
        tokens_per_block=40,
        sequences=((33, 33), (1, 700), (20, 100), (1, 1), (2, 2)),
    ),
    Case(
        name="E2B sliding, one key head, a chunk longer than a tile and a window",
        num_heads=8,
        num_kv_heads=1,
        head_dim=256,
        window=100,
        tokens_per_block=24,
        sequences=((1, 300), (290, 450), (1, 99)),
    ),
    Case(
        name="31B sliding, chunk across the window and decode",
        num_heads=32,
        num_kv_heads=16,
        head_dim=256,
        window=1024,
        tokens_per_block=16,
        sequences=((9, 1100), (1, 1030), (1, 3)),
    ),
    Case(
        name="31B global, shared, 320 tokens per block",
        num_heads=32,
        num_kv_heads=4,
        head_dim=512,
        window=None,
        tokens_per_block=320,
        sequences=((1, 1), (1, 640), (1, 1500), (30, 333), (4, 4)),
        num_rotated_pairs=64,
    ),
    Case(
        name="12B global, shared, one key head for sixteen",
        num_heads=16,
        num_kv_heads=1,
        head_dim=512,
        window=None,
        tokens_per_block=640,
        sequences=((5, 645), (1, 641), (1, 640)),
        num_rotated_pairs=64,
    ),
    Case(
        name="Gemma 3 27B global, heads of 128, 83 tokens per block",
        num_heads=32,
        num_kv_heads=16,
        head_dim=128,
        window=None,
        tokens_per_block=83,
        sequences=((1, 200), (90, 90), (1, 84), (1, 83)),
        scale=168**-0.5,
    ),
)
