"""Chooses how many threads compute on a CPU.

By a fixed rule: a number found by timing would differ from start to start, and with it the last bits of answers.
"""

import math
import os
from pathlib import Path

import torch

# A thread for so many bytes of weights: with less to do, handing work over takes longer than the work.
BYTES_PER_THREAD = 16 << 20


def choose_num_threads(weight_bytes: int, num_usable: int) -> int:
    return max(1, min(num_usable, math.ceil(weight_bytes / BYTES_PER_THREAD)))


def usable_cores() -> int:
    """Cores this process may use: those it may be scheduled on, those that torch would use, or a container's share."""
    return max(1, min(torch.get_num_threads(), _schedulable(), _quota(Path("/sys/fs/cgroup"))))


def are_threads_given() -> bool:
    """Whether the user has said how many threads there are to be."""
    return bool(os.environ.get("OMP_NUM_THREADS"))


def _schedulable() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota(folder: Path) -> int:
    """Cores that a control group may keep busy, rounded up; a large number where there is no limit."""
    unlimited = 1 << 16
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = (
                (folder / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        return unlimited if quota.strip() in ("max", "-1") else max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return unlimited
