"""Steps before the first request compile every decode kernel that a request may need beside a prompt."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from facet.kernels.paged_attention.cache import LayerCache
from facet.kernels.paged_attention.decode import tuning
from facet.kernels.paged_attention.decode.readers import SEPARATE, SEPARATE_8BIT, SHARED, SHARED_8BIT, Reader
from facet.runner.warm_up import STEPS

PROCESSORS = 132  # of an H200
# Heads, key heads, dimensions, window.
LAYERS = {
    "E4B sliding": (8, 2, 256, 512),
    "E4B global": (8, 2, 512, 0),
    "E2B sliding": (8, 1, 256, 512),
    "E2B global": (8, 1, 512, 0),
    "31B sliding": (32, 16, 256, 1024),
    "31B global": (32, 4, 512, 0),
    "26B-A4B sliding": (16, 8, 256, 1024),
    "26B-A4B global": (16, 2, 512, 0),
}


def variant(name: str, reader: Reader, num_rows: int, context: int) -> tuple[Any, ...]:
    """What a decode kernel is compiled for."""
    heads, kv_heads, head_dim, window = LAYERS[name]
    dtype = torch.int8 if reader.widens_to_half else torch.bfloat16
    pages = torch.empty(1, 16, kv_heads, head_dim, dtype=dtype, device="meta")
    cache = LayerCache(keys=pages, values=None if reader in (SHARED, SHARED_8BIT) else pages)
    queries = torch.empty(num_rows, heads, head_dim, dtype=torch.bfloat16, device="meta")
    plan: Any = SimpleNamespace(
        num_rows=num_rows,
        most_keys=min(context, window) if window else context,
        rows=SimpleNamespace(window=window, heads=SimpleNamespace(num_kv_heads=kv_heads)),
    )
    chosen = tuning.choose_decode_tuning(reader, queries, cache, plan)
    return (
        chosen.keys_per_tile,
        chosen.num_warps,
        chosen.num_stages,
        chosen.merged_shares,
        chosen.num_splits == 1,
        chosen.num_splits > 1 and not chosen.last_merges,  # a second kernel
        chosen.exits_early and chosen.num_splits > 1,
    )


@pytest.mark.parametrize("is_8bit", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_all_variants_are_met(name: str, is_8bit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tuning,
        "fitting_shares",
        lambda plan, _device, programs: programs * PROCESSORS // (plan.num_rows * plan.rows.heads.num_kv_heads),
    )
    is_shared = name in ("31B global", "26B-A4B global")
    reader = (SHARED_8BIT if is_8bit else SHARED) if is_shared else (SEPARATE_8BIT if is_8bit else SEPARATE)
    met = {
        variant(name, reader, step.query_lens.count(1), step.num_computed + max(step.query_lens))
        for step in STEPS
        if 1 in step.query_lens
    }
    contexts = (1, 40, 70, 130, 200, 513, 1000, 2000, 9000, 100_000)
    for num_rows in (*range(1, 33), *range(33, 129, 5)):
        for context in contexts:
            assert variant(name, reader, num_rows, context) in met, f"{num_rows} rows, {context} keys"
