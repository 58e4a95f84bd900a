"""Runs a model over pages by hand: what the engine does, without an engine. Freed and unused memory is NaN."""

import random
from dataclasses import replace
from pathlib import Path

import torch

from facet.config import ModelConfig
from facet.kv_layout import KVLayout, make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.model.loader import LoadedModel, load_model
from facet.model_spec import ModelSpec
from facet.runner.batch import SequenceRows, make_batch_of


def load(folder: Path, **settings: object) -> LoadedModel:
    """The decoder alone."""
    config = ModelConfig(model=str(folder), device="cpu", language_model_only=True, **settings)  # type: ignore[arg-type]
    return load_model(config)


def stored_separately(spec: ModelSpec) -> ModelSpec:
    """For layouts: every layer stores keys and values, also where one shared vector would do."""
    return replace(spec, layers=tuple(replace(layer, values_are_keys=False) for layer in spec.layers))


class PagedSequence:
    """One sequence with pages of its own, in scattered order, run chunk by chunk. `stores`: whose layout, if not its
    model's."""

    def __init__(
        self,
        model: Gemma,
        max_tokens: int,
        *,
        stores: ModelSpec | None = None,
        kv_dtype: str = "float32",
        min_tokens_per_block: int = 4,
    ) -> None:
        self.model = model
        self.layout: KVLayout = make_kv_layout(
            stores or model.spec, dtype=kv_dtype, min_tokens_per_block=min_tokens_per_block
        )
        counts = [-(-max_tokens // group.tokens_per_block) for group in self.layout.groups]
        pages = list(range(1, 1 + sum(counts)))
        random.Random(0).shuffle(pages)
        self.tables = tuple(tuple(pages.pop() for _ in range(count)) for count in counts)
        self.arena = KVArena(self.layout, 1 + sum(counts), model.placement.device)
        self.arena.poison(torch.arange(1 + sum(counts), device=model.placement.device))
        self.num_computed = 0

    def rows(self, token_ids: list[int], num_logit_rows: int) -> SequenceRows:
        return SequenceRows(
            token_ids=token_ids,
            num_computed=self.num_computed,
            block_tables=self.tables,
            num_logit_rows=num_logit_rows,
        )

    @torch.inference_mode()
    def run(self, token_ids: list[int], *, num_logit_rows: int | None = None, skip_upper: bool = False) -> torch.Tensor:
        """Logits of the last rows (default: all of them)."""
        count = len(token_ids) if num_logit_rows is None else num_logit_rows
        batch = make_batch_of([self.rows(token_ids, count)], self.model.placement.device, skip_upper=skip_upper)
        logits = self.model.logits(self.model(batch, self.arena))
        self.num_computed += len(token_ids)
        return logits

    def greedy(self, token_ids: list[int], num_tokens: int, *, skip_upper: bool = True) -> list[int]:
        return self.greedy_logits(token_ids, num_tokens, skip_upper=skip_upper).argmax(-1).tolist()

    def greedy_logits(self, token_ids: list[int], num_tokens: int, *, skip_upper: bool = True) -> torch.Tensor:
        """[tokens, vocabulary]: the logits that each of the likeliest tokens was chosen from."""
        pending, rows = token_ids, []
        for _ in range(num_tokens):
            rows.append(self.run(pending, num_logit_rows=1, skip_upper=skip_upper))
            pending = [int(rows[-1].argmax())]
        return torch.cat(rows)
