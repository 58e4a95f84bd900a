"""Times the attention kernels on a GPU at the shapes of E4B and 31B, and compares them with the hardware's limits.

    python -m benchmarks.attention_gpu

Decoding reads every visible key and value once, so it is compared with the bandwidth of a plain read; prefill is
compared with a large bfloat16 matrix product. Both limits are measured in the same run.
"""

from dataclasses import dataclass

import torch
import triton
from rich.console import Console
from rich.table import Table

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import HeadShape, KeyRecipe, LayerCache, plan_attention
from facet.kernels.rotary import rotary_table


@dataclass(frozen=True)
class Load:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    tokens_per_block: int
    num_sequences: int
    query_len: int
    context_len: int
    is_shared: bool = False

    @property
    def num_visible(self) -> int:
        return min(self.context_len, self.window or self.context_len)

    @property
    def bytes_read(self) -> int:
        vectors = 1 if self.is_shared else 2
        return self.num_sequences * self.num_visible * vectors * self.num_kv_heads * self.head_dim * 2

    @property
    def num_operations(self) -> float:
        """Two products over every visible pair of a query and a key."""
        positions = range(self.context_len - self.query_len, self.context_len)
        pairs = sum(min(position + 1, self.window or position + 1) for position in positions)
        return 4.0 * self.num_sequences * pairs * self.num_heads * self.head_dim


LOADS = (
    Load("E4B sliding decode, 32 x 8K", 8, 2, 256, 512, 16, 32, 1, 8192),
    Load("E4B global decode, 8 x 8K", 8, 2, 512, None, 40, 8, 1, 8192),
    Load("E4B global decode, 32 x 8K", 8, 2, 512, None, 40, 32, 1, 8192),
    Load("31B sliding decode, 4 x 64K", 32, 16, 256, 1024, 16, 4, 1, 65536),
    Load("31B global decode, 1 x 64K, separate", 32, 4, 512, None, 320, 1, 1, 65536),
    Load("31B global decode, 1 x 64K, shared", 32, 4, 512, None, 320, 1, 1, 65536, True),
    Load("31B global decode, 4 x 64K, separate", 32, 4, 512, None, 320, 4, 1, 65536),
    Load("31B global decode, 4 x 64K, shared", 32, 4, 512, None, 320, 4, 1, 65536, True),
    Load("E4B sliding prefill, 8192", 8, 2, 256, 512, 16, 1, 8192, 8192),
    Load("E4B global prefill, 8192", 8, 2, 512, None, 40, 1, 8192, 8192),
    Load("31B sliding prefill, 8192", 32, 16, 256, 1024, 16, 1, 8192, 8192),
    Load("31B global prefill, 8192, shared", 32, 4, 512, None, 320, 1, 8192, 8192, True),
)


def milliseconds(load: Load) -> float:
    device = torch.device("cuda")
    per_sequence = -(-load.context_len // load.tokens_per_block)
    # Sequences share the pages behind their windows: those are never read.
    num_pages = 1 + load.num_sequences * per_sequence
    shape = (num_pages, load.tokens_per_block, load.num_kv_heads, load.head_dim)
    vectors = [torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(1 if load.is_shared else 2)]
    table = 1 + torch.randperm(num_pages - 1, device=device).int().view(load.num_sequences, per_sequence)
    lens = [load.query_len] * load.num_sequences
    rows = AttentionRows(
        positions=torch.arange(load.context_len - load.query_len, load.context_len, device=device)
        .int()
        .repeat(load.num_sequences),
        seats=torch.arange(load.num_sequences, device=device).int().repeat_interleave(load.query_len),
        block_tables=(table,),
        host_query_lens=tuple(lens),
        host_context_lens=(load.context_len,) * load.num_sequences,
        host_prompt_lens=tuple(0 if length == 1 else length for length in lens),
    )
    recipe = None
    if load.is_shared:
        angles = rotary_table(
            load.context_len, head_dim=512, num_pairs=64, theta=1e6, factor=1.0, dtype=torch.bfloat16, device=device
        )
        recipe = KeyRecipe(weight=torch.rand(load.head_dim, device=device) + 0.5, cos_sin=angles)
    cache = LayerCache(keys=vectors[0], values=None if load.is_shared else vectors[1])
    queries = torch.randn(sum(lens), load.num_heads, load.head_dim, device=device, dtype=torch.bfloat16) / 16
    heads = HeadShape(num_heads=load.num_heads, num_kv_heads=load.num_kv_heads, head_dim=load.head_dim)
    plan = plan_attention(rows, table, heads, window=load.window, tokens_per_block=load.tokens_per_block)
    time: float = triton.testing.do_bench(
        lambda: plan.run(queries, cache, scale=1.0, key_recipe=recipe), warmup=20, rep=100
    )
    return time


def ceilings() -> tuple[float, float]:
    """Bytes per second of a read, operations per second of a matrix product."""
    data = torch.randn(2**29, device="cuda", dtype=torch.bfloat16)
    read = triton.testing.do_bench(lambda: data.view(torch.int32).amax())
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = triton.testing.do_bench(lambda: a @ b)
    return 2**30 / read * 1e3, 2 * 8192**3 / product * 1e3


def main() -> None:
    read, product = ceilings()
    table = Table(
        title=f"{torch.cuda.get_device_name()}: read {read / 1e12:.2f} TB/s, product {product / 1e12:.0f} TFLOP/s"
    )
    for column in ("load", "µs", "TB/s", "TFLOP/s", "of ceiling"):
        table.add_column(column, justify="left" if column == "load" else "right", no_wrap=True)
    for load in LOADS:
        seconds = milliseconds(load) / 1e3
        moved, computed = load.bytes_read / seconds, load.num_operations / seconds
        share = moved / read if load.query_len == 1 else computed / product
        table.add_row(
            load.name, f"{seconds * 1e6:.0f}", f"{moved / 1e12:.2f}", f"{computed / 1e12:.0f}", f"{share:.0%}"
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
