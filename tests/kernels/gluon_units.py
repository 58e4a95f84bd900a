"""What `facet.kernels.linear.units` does, for the emulator: places in shared memory are those of a tensor there."""

import math
from typing import Any

import torch
from torch import Tensor

from facet.kernels.linear.ring_config import num_read
from tests.kernels import gluon_machine as machine


class _Rows(machine.Shared):
    """Read when they are asked for, since copies may land meanwhile. No sum may depend on those that are not there."""

    def __init__(self, numbers: Tensor, unfenced: Tensor, num_rows: int) -> None:
        self._units, self._num_rows = (numbers, unfenced), num_rows

    def _read(self, units: Tensor) -> Tensor:
        rows = units.transpose(1, 2).reshape(self._num_rows, -1)
        return torch.cat((rows, rows.new_zeros(num_read(self._num_rows) - self._num_rows, rows.shape[1])))

    @property
    def numbers(self) -> Tensor:  # type: ignore[override]
        return self._read(self._units[0])

    @property
    def unfenced(self) -> Tensor:  # type: ignore[override]
        return self._read(self._units[1])


class _Row(machine.Shared):
    """As `_Rows`, of one row that lies in units."""

    def __init__(self, numbers: Tensor, unfenced: Tensor) -> None:
        self._units = (numbers, unfenced)

    def _read(self, units: Tensor) -> Tensor:
        row = units[:, 0].reshape(1, -1)
        return torch.cat((row, row.new_zeros(7, row.shape[1])))

    @property
    def numbers(self) -> Tensor:  # type: ignore[override]
        return self._read(self._units[0])

    @property
    def unfenced(self) -> Tensor:  # type: ignore[override]
        return self._read(self._units[1])


def allocate_units(dtype: torch.dtype, num_tiles: int, num_rows: int, block_in: int) -> machine.Shared:
    num_units = ((num_tiles - 1) * num_rows + num_read(num_rows)) // 8 * (block_in // 64)
    return machine.allocate_shared_memory(dtype, [num_units, 8, 64], None)


def units_to_copy(units: machine.Shared, first: int, part: Any) -> machine.Shared:
    num_units = math.prod(part.block_shape) // 512
    return units._both(lambda tensor: tensor[first : first + num_units].view(*part.block_shape))


def rows_to_read(units: machine.Shared, first: int, num_rows: int, block_in: int) -> machine.Shared:
    shape = (num_rows // 8, block_in // 64, 8, 64)
    views = (tensor[first : first + math.prod(shape[:2])].view(shape) for tensor in (units.numbers, units.unfenced))
    return _Rows(*views, num_rows)


def first_row_of_units(units: machine.Shared, first: int, num_units: int) -> machine.Shared:
    return units._both(lambda tensor: tensor[first : first + num_units, :1])


def row_to_read(units: machine.Shared, tile: int, block_in: int) -> machine.Shared:
    first = tile * (block_in // 64)
    return _Row(*(tensor[first : first + block_in // 64] for tensor in (units.numbers, units.unfenced)))


UNITS = {
    "UNIT_ROWS": 8,
    "UNIT_INPUTS": 64,
    "allocate_units": allocate_units,
    "first_row_of_units": first_row_of_units,
    "num_read": num_read,
    "row_to_read": row_to_read,
    "rows_to_read": rows_to_read,
    "units_to_copy": units_to_copy,
}
