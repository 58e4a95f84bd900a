"""How many threads compute, by a rule that gives the same number at every start."""

from pathlib import Path

import pytest

from facet.engine import cpu_threads
from facet.engine.cpu_threads import choose_num_threads, usable_cores

MIB = 1 << 20


@pytest.mark.parametrize(
    ("weight_bytes", "num_usable", "expected"),
    [
        (15 * MIB, 2, 1),
        (16 * MIB, 8, 1),
        (17 * MIB, 8, 2),
        (1 << 30, 2, 2),
        (1 << 30, 80, 64),
        (16 << 30, 64, 64),
        (0, 4, 1),
    ],
)
def test_a_thread_for_every_so_many_bytes(weight_bytes: int, num_usable: int, expected: int) -> None:
    assert choose_num_threads(weight_bytes, num_usable) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu.max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_share_of_a_container(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = cpu_threads._quota(tmp_path)
    assert found == expected if expected is not None else found > 1_000


def test_usable_cores_are_no_more_than_there_are() -> None:
    assert 1 <= usable_cores() <= len(cpu_threads.os.sched_getaffinity(0))
