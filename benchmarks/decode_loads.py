"""What the attention of decoded rows is timed with: shapes and context lengths, and random layers of them.

Each layer has memory of its own, several times what the second-level cache holds in all, so that nothing is found there
that would not be there in a model.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import HeadShape, KeyRecipe, LayerCache, gpu
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.quantization import cast, quantize
from facet.kernels.rotary import rotary_table
from facet.kv_dtypes import KV_DTYPES, SCALE_BYTES, KVDtype

DEVICE = "cuda"
BYTES_IN_ROTATION = 2**28  # several times the L2
MOST_LAYERS = 128
LONGEST_PLANNED = 131_072  # what a captured graph is made for


@dataclass(frozen=True)
class Load:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    tokens_per_block: int
    context_lens: tuple[int, ...]
    is_shared: bool = False
    kv_dtype: KVDtype = KV_DTYPES["bfloat16"]

    @property
    def heads(self) -> HeadShape:
        return HeadShape(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    @property
    def vectors(self) -> str:
        return f"{'shared' if self.is_shared else 'separate'} vectors of {self.head_dim}"

    @property
    def bytes_read(self) -> int:
        num_keys = sum(min(length, self.window or length) for length in self.context_lens)
        vector = self.head_dim * self.kv_dtype.num_bytes + (SCALE_BYTES if self.kv_dtype.has_scales else 0)
        return num_keys * (1 if self.is_shared else 2) * self.num_kv_heads * vector

    @property
    def num_layers(self) -> int:
        return max(1, min(MOST_LAYERS, BYTES_IN_ROTATION // self.bytes_read))


def e4b_sliding(name: str, *context_lens: int) -> Load:
    return Load(f"E4B sliding {name}", 8, 2, 256, 512, 32, context_lens)


def e4b_global(name: str, *context_lens: int) -> Load:
    return Load(f"E4B global {name}", 8, 2, 512, None, 80, context_lens)


def b31_sliding(name: str, *context_lens: int) -> Load:
    return Load(f"31B sliding {name}", 32, 16, 256, 1024, 16, context_lens)


def b31_global(name: str, *context_lens: int) -> Load:
    return Load(f"31B global {name}", 32, 4, 512, None, 320, context_lens, True)


LOADS = (
    e4b_sliding("1 x 8K", 8192),
    e4b_sliding("8 x 8K", *[8192] * 8),
    e4b_sliding("32 x 8K", *[8192] * 32),
    e4b_sliding("100 x 8K", *[8192] * 100),
    e4b_global("1 x 512", 512),
    e4b_global("1 x 8K", 8192),
    e4b_global("8 x 8K", *[8192] * 8),
    e4b_global("32 x 8K", *[8192] * 32),
    e4b_global("100 x 768", *[768] * 100),
    e4b_global("90 x 768, 10 x 8K", *[768] * 90, *[8192] * 10),
    b31_sliding("1 x 8K", 8192),
    b31_sliding("32 x 8K", *[8192] * 32),
    b31_global("1 x 512", 512),
    b31_global("1 x 64K", 65_536),
    b31_global("4 x 64K", *[65_536] * 4),
    b31_global("32 x 2K", *[2048] * 32),
)

LATENCY_LOADS = (
    e4b_sliding("1 x 8K", 8192),
    e4b_sliding("8 x 8K", *[8192] * 8),
    e4b_global("1 x 512", 512),
    e4b_global("1 x 8K", 8192),
    e4b_global("8 x 768", *[768] * 8),
    b31_sliding("1 x 8K", 8192),
    b31_global("1 x 512", 512),
)
FIXED_LOADS = (
    *(e4b_sliding(f"{count} x 512", *[512] * count) for count in (1, 8, 32, 100)),
    *(e4b_global(f"{count} x 512", *[512] * count) for count in (1, 8, 32, 100)),
    e4b_global("8 x 8K", *[8192] * 8),
    e4b_global("90 x 768, 10 x 8K", *[768] * 90, *[8192] * 10),
    *(b31_sliding(f"{count} x 2K", *[2048] * count) for count in (1, 8, 32)),
    *(b31_global(f"{count} x 2K", *[2048] * count) for count in (1, 32)),
)
QUANTIZED_LOADS = (
    e4b_sliding("32 x 8K", *[8192] * 32),
    Load("Gemma 3 12B global 4 x 64K", 16, 8, 256, None, 80, (65_536,) * 4),
    e4b_global("8 x 64K", *[65_536] * 8),
    b31_global("1 x 64K", 65_536),
    b31_global("4 x 64K", *[65_536] * 4),
)
QUANTIZED_DTYPES = ("bfloat16", "fp8_e4m3", "fp8_per_token_head", "int8_per_token_head")


@dataclass(frozen=True)
class Layers:
    """The same batch, once per layer."""

    queries: Tensor
    cache: LayerCache
    rows: AttentionRows
    block_tables: tuple[Tensor, ...]
    plans: tuple[DecodePlan, ...]
    recipe: KeyRecipe | None


def make_cache(load: Load, num_pages: int, generator: torch.Generator) -> LayerCache:
    """Random vectors, quantized some pages at a time."""
    shape = (num_pages, load.tokens_per_block, load.num_kv_heads, load.head_dim)
    stored_as = getattr(torch, load.kv_dtype.stored_as)
    vectors, scales = [], []
    for _ in range(1 if load.is_shared else 2):
        if not load.kv_dtype.is_quantized:
            vectors.append(torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.bfloat16))
            continue
        pages = torch.empty(shape, dtype=stored_as, device=DEVICE)
        # Tokens of one head side by side, as the arena lays them out.
        page_scales = torch.empty(num_pages, shape[2], shape[1], device=DEVICE).transpose(1, 2)
        for first in range(0, num_pages, 256):
            some = torch.randn(pages[first : first + 256].shape, generator=generator, device=DEVICE)
            if load.kv_dtype.has_scales:
                numbers, page_scales[first : first + 256] = quantize(some, stored_as)
            else:
                numbers = cast(some, stored_as)
            pages.view(torch.uint8)[first : first + 256] = numbers.view(torch.uint8)
        vectors.append(pages)
        scales.append(page_scales)
    has_scales, has_values = load.kv_dtype.has_scales, not load.is_shared
    return LayerCache(
        keys=vectors[0],
        values=vectors[1] if has_values else None,
        key_scales=scales[0] if has_scales else None,
        value_scales=scales[1] if has_scales and has_values else None,
    )


def make_layers(load: Load, num_layers: int | None = None) -> Layers:
    generator = torch.Generator(DEVICE).manual_seed(0)
    num_layers = num_layers or load.num_layers
    num_rows, size = len(load.context_lens), load.tokens_per_block
    lives = [(max(0, length - (load.window or length)) // size, -(-length // size)) for length in load.context_lens]
    pages_per_layer = sum(last - first for first, last in lives)
    num_pages = 1 + num_layers * pages_per_layer
    pages = 1 + torch.randperm(num_pages - 1, generator=generator, device=DEVICE).int()
    tables, start = [], 0
    for _ in range(num_layers):
        # Blocks behind the window, and beyond the end, are nobody's.
        table = torch.zeros(num_rows, -(-LONGEST_PLANNED // size), dtype=torch.int32, device=DEVICE)
        for row, (first, last) in enumerate(lives):
            table[row, first:last] = pages[start : start + last - first]
            start += last - first
        tables.append(table)
    cache = make_cache(load, num_pages, generator)
    recipe = None
    if load.is_shared:
        table = rotary_table(
            LONGEST_PLANNED,
            head_dim=load.head_dim,
            num_pairs=load.head_dim // 8,
            theta=1e6,
            factor=1.0,
            dtype=torch.bfloat16,
            device=DEVICE,
        )
        weight = torch.rand(load.head_dim, generator=generator, device=DEVICE) + 0.5
        recipe = KeyRecipe(weight=weight, cos_sin=table)
    rows = AttentionRows(
        positions=torch.tensor(load.context_lens, dtype=torch.int32, device=DEVICE) - 1,
        seats=torch.arange(num_rows, dtype=torch.int32, device=DEVICE),
        block_tables=tuple(tables),
        host_query_lens=(1,) * num_rows,
        host_context_lens=load.context_lens,
        host_prompt_lens=(0,) * num_rows,
    )
    # A graph knows the longest context there may be and no other.
    planned = replace(rows, host_context_lens=(LONGEST_PLANNED,) * num_rows)
    queries = torch.randn(num_rows, load.num_heads, load.head_dim, generator=generator, device=DEVICE)
    return Layers(
        queries=(queries * 2 / load.head_dim**0.5).bfloat16(),
        cache=cache,
        rows=rows,
        block_tables=tuple(tables),
        plans=tuple(decode_plan(load, planned, table) for table in tables),
        recipe=recipe,
    )


def decode_plan(load: Load, rows: AttentionRows, table: Tensor) -> DecodePlan:
    plan = gpu.plan_on_gpu(rows, table, load.heads, window=load.window, tokens_per_block=load.tokens_per_block)
    (decode,) = plan.decodes
    return decode
