"""A launch of each kernel that is compiled for Hopper without a GPU, by name."""

from tests.kernels.hopper_launches import attention, eight_bits, four_bits, groups, products, rows
from tests.kernels.hopper_launches.making import Launch


def launches() -> dict[str, Launch]:
    parts = [room.launches() for room in (attention, products, eight_bits, groups, four_bits, rows)]
    together = {name: launch for part in parts for name, launch in part.items()}
    assert len(together) == sum(map(len, parts)), "a name belongs to one launch"
    return together
