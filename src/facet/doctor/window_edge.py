"""Checks that a sliding layer sees its whole window and nothing else.

The last rows of a prompt are computed over pages that are overwritten at the edge of the first row's window:

    ... p-w-1   p-w │ p-w+1  p-w+2 ...  p        position p sees w tokens, itself included
        NaN     NaN │ changed                    NaN before the edge must have no effect; a change at it must

Windows come from the model's spec. Pages and tables are made here, so that nothing but the model's own arithmetic is
under test.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from facet.doctor.findings import Finding, skipped
from facet.doctor.patient import Patient
from facet.kv_layout import KVGroup, make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.model_spec import AttentionKind
from facet.runner.batch import SequenceRows, make_batch_of

LOUD = 50.0  # far from any key or value that a norm lets through


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One sequence in pages 1, 2, 3 ... of a group each."""

    model: Gemma
    arena: KVArena
    token_ids: tuple[int, ...]

    def compute(self, first: int) -> Tensor:
        """The hidden states of tokens from `first` on; those before them are in the pages."""
        sequence = SequenceRows(
            token_ids=self.token_ids[first:],
            num_computed=first,
            block_tables=self._tables(),
            num_logit_rows=len(self.token_ids) - first,
        )
        with torch.inference_mode():
            batch = make_batch_of([sequence], self.model.placement.device, skip_upper=False)
            hidden: Tensor = self.model(batch, self.arena)
        return hidden.clone()

    def spoil(self, group: KVGroup, first: int, last: int, value: float) -> None:
        """Overwrites what the group's layers stored for tokens first .. last - 1."""
        index = self.arena.layout.groups.index(group)
        positions = torch.arange(first, last, device=self.model.placement.device)
        table = torch.tensor(self._tables()[index], device=positions.device)
        blocks, slots = table[positions // group.tokens_per_block], positions % group.tokens_per_block
        for store in group.stores:
            cache = self.arena.layer(store.layer)
            for stored in (cache.keys, cache.values):
                if stored is not None:
                    stored[blocks, slots] = value

    def _tables(self) -> tuple[list[int], ...]:
        tables, start = [], 1
        for group in self.arena.layout.groups:
            count = -(-len(self.token_ids) // group.tokens_per_block)
            tables.append(list(range(start, start + count)))
            start += count
        return tuple(tables)


def check_window_edge(patient: Patient) -> Iterator[Finding]:
    """Checks a single row, as in decoding, and a run of rows, as in a later chunk of a prompt."""
    model = patient.model
    windows = {layer.attention: layer.window for layer in model.spec.layers if layer.window is not None}
    name = "window edge"
    if not windows:
        yield skipped(name, "no layer of this model has a window")
        return
    for num_rows in (1, 3):
        faults = []
        for kind, window in windows.items():
            if window + num_rows + 1 > model.num_positions:
                yield skipped(name, f"the window of {window} tokens is as long as the context")
                return
            faults += _faults(model, kind, window, num_rows)
        rows = "one row" if num_rows == 1 else "a chunk"
        yield Finding(check=f"{name}, {rows}", status="fail" if faults else "pass", note="; ".join(faults))


def _faults(model: Gemma, kind: AttentionKind, window: int, num_rows: int) -> list[str]:
    layout = make_kv_layout(model.spec, dtype=str(model.placement.dtype).removeprefix("torch."))
    num_tokens = min(2 * window + num_rows, model.num_positions)
    num_pages = 1 + sum(-(-num_tokens // group.tokens_per_block) for group in layout.groups)
    vocab_size = model.spec.vocab_size
    prompt = _Prompt(
        model,
        KVArena(layout, num_pages, model.placement.device),
        tuple((7 * index + 3) % vocab_size for index in range(num_tokens)),
    )
    group = layout.groups[layout.group_of(kind)]
    first_row = num_tokens - num_rows
    edge = first_row - window + 1  # the first position that the first row sees
    prompt.compute(0)
    plain = prompt.compute(first_row)
    prompt.spoil(group, 0, edge, float("nan"))
    ahead = prompt.compute(first_row)
    faults = []
    if not torch.equal(plain, ahead):
        faults.append(f"{kind} layers attend further back than {window} tokens")
    # Rows after the first do not see its edge, and it does not see them: its own state alone tells.
    prompt.spoil(group, edge, edge + 1, LOUD)
    if torch.equal(plain[0], prompt.compute(first_row)[0]):
        faults.append(f"{kind} layers attend to less than {window} tokens")
    return faults
