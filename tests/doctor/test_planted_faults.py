"""Every planted fault is found, by the line that is there for it, and a sound engine has none."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from facet.doctor import chat_check
from facet.doctor import examine as examination
from facet.doctor.config import DoctorConfig
from facet.doctor.examine import examine
from facet.doctor.findings import Report
from facet.doctor.workload import Effort
from facet.kernels.paged_attention import reference
from facet.kv_cache.manager import KVCacheManager
from facet.model.gemma import Gemma
from facet.runner.graphs import DecodeGraphs
from facet.runner.seat_state import SeatState
from facet.step import Admission, NewBlocks

Plant = Callable[[pytest.MonkeyPatch], None]

EDGES = {"attention, sliding", "window edge, one row", "window edge, a chunk"}


def examined(folder: Path) -> Report:
    return examine(DoctorConfig(model=str(folder), device="cpu", quick=True))


def keep_checks(patch: pytest.MonkeyPatch, *titles: str) -> None:
    """Leave out the others, which take most of the time."""
    checks_for = examination.checks_for

    def chosen(effort: Effort) -> list[tuple[str, examination.Check]]:
        return [(title, check) for title, check in checks_for(effort) if title in titles]

    patch.setattr(examination, "checks_for", chosen)


def failed(report: Report) -> set[str]:
    return {finding.check for finding in report.findings if finding.status == "fail"}


def free_a_block_one_step_early(patch: pytest.MonkeyPatch) -> None:
    """The window moves as if the step being planned had been computed already."""
    move_windows = KVCacheManager._move_windows

    def too_far(self: KVCacheManager, rows: Any, num_computed: Any) -> None:
        move_windows(self, rows, num_computed + 1)

    patch.setattr(KVCacheManager, "_move_windows", too_far)


def leave_a_stale_table_tail(patch: pytest.MonkeyPatch) -> None:
    """A seat that is used again keeps the far end of its table from whoever had it before."""
    admit, append = SeatState.admit, SeatState.append_blocks

    def admit_over(self: SeatState, admission: Admission) -> None:
        tails = [table[admission.seat, 2:].clone() for table in self.block_tables]
        admit(self, admission)
        for table, tail in zip(self.block_tables, tails, strict=True):
            table[admission.seat, 2:] = tail

    def append_near_end(self: SeatState, new: NewBlocks) -> None:
        near = (new.indices < 2) | (new.seats == 0)
        kept = {name: getattr(new, name)[near] for name in ("seats", "groups", "indices", "block_ids")}
        append(self, NewBlocks(**kept))

    patch.setattr(SeatState, "admit", admit_over)
    patch.setattr(SeatState, "append_blocks", append_near_end)


def let_a_nan_pad_row_be_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Pad rows hold NaN, and something takes a maximum over all rows of a step."""
    stage, upper = DecodeGraphs._stage, Gemma.upper

    def stage_nan(self: DecodeGraphs, positions: np.ndarray, *others: np.ndarray) -> None:
        stage(self, positions, *others)
        self._buffers.stream[..., len(positions) :, :] = float("nan")

    def upper_over_all_rows(self: Gemma, stream: Tensor, *arguments: Any, **named: Any) -> Tensor:
        return upper(self, stream + 0 * stream.amax() if stream.numel() else stream, *arguments, **named)

    patch.setattr(DecodeGraphs, "_stage", stage_nan)
    patch.setattr(Gemma, "upper", upper_over_all_rows)


def share_a_parser(patch: pytest.MonkeyPatch) -> None:
    """Replies that are read at the same time are read by one parser."""
    make, made = chat_check.make_reply_parser, []

    def make_once(*arguments: Any, **named: Any) -> Any:
        if not made:
            made.append(make(*arguments, **named))
        return made[0]

    patch.setattr(chat_check, "make_reply_parser", make_once)


def read_a_scale_from_the_wrong_row(patch: pytest.MonkeyPatch) -> None:
    dequantize = reference.dequantize

    def with_neighbours_scale(stored: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
        return dequantize(stored, None if scales is None else scales.roll(1, dims=1), dtype)

    patch.setattr(reference, "dequantize", with_neighbours_scale)


def widen_the_window(by: int) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        plan_reference = reference.plan_reference

        def off_by_one(*arguments: Any, window: int | None, **named: Any) -> Any:
            return plan_reference(*arguments, window=None if window is None else window + by, **named)

        patch.setattr(reference, "plan_reference", off_by_one)

    return plant


# Each with the checks that look for it, and the lines that report it.
FAULTS: dict[str, tuple[Plant, Sequence[str], set[str]]] = {
    "early_free": (free_a_block_one_step_early, ("alone", "NaN in dead memory"), {"NaN in dead memory"}),
    "stale_tail": (leave_a_stale_table_tail, ("alone", "8 in flight"), {"8 in flight"}),
    "window_wide": (widen_the_window(1), ("attention", "window edge"), EDGES),
    "window_narrow": (widen_the_window(-1), ("attention", "window edge"), EDGES),
    "nan_pad_row": (let_a_nan_pad_row_be_looked_at, ("alone", "padded steps"), {"padded steps"}),
    "shared_parser": (share_a_parser, ("alone", "chat with tools"), {"replies parsed", "chats parsed"}),
    "wrong_scale": (
        read_a_scale_from_the_wrong_row,
        ("alone", "KV dtypes"),
        {"KV int8_per_token_head", "KV fp8_per_token_head"},
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, chatty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a check that comes to its end: one that the fault breaks would fail as well."""
    plant, checks, lines = FAULTS[fault]
    plant(monkeypatch)
    keep_checks(monkeypatch, *checks)
    report = examined(chatty_folder)
    assert not report.is_healthy
    assert failed(report) == lines
    assert not [finding for finding in report.findings if "Error:" in finding.note]


def test_faults_in_one_place_are_found_there_alone(chatty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one examination, whose other checks find nothing."""
    found_there = set()
    for fault in ("nan_pad_row", "shared_parser", "wrong_scale"):
        plant, _, lines = FAULTS[fault]
        plant(monkeypatch)
        found_there |= lines
    assert failed(examined(chatty_folder)) == found_there


def test_a_sound_engine_has_none(chatty_folder: Path) -> None:
    report = examined(chatty_folder)
    assert failed(report) == set()
    by_name = {finding.check: finding for finding in report.findings}
    assert by_name["8 in flight"].deviation is not None
    assert by_name["8 in flight"].deviation < 1e-4
    talked = ("injected control tokens", "chat with tools", "chats parsed", "replies parsed")
    computed = ("prefix cache", "fast prefill", "2 in flight", "window edge, one row", "KV int8_per_token_head")
    for check in (*talked, *computed):
        assert by_name[check].status == "pass", check
    assert by_name["kernels"].status == "skipped"


def test_a_check_that_breaks_is_a_finding(chatty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*arguments: object, **named: object) -> None:
        raise RuntimeError("something came loose\nand more")

    monkeypatch.setattr(Gemma, "logits", break_down)
    report = examined(chatty_folder)
    broken = {finding.check: finding.note for finding in report.findings if finding.status == "fail"}
    assert broken["alone"] == "RuntimeError: something came loose"
