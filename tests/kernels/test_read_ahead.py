"""Products that ask for the beginning of the weight that is read next: on a CPU which bytes they ask for, on the card
that no bit of theirs depends on it."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.linear import read_ahead
from facet.kernels.linear.ring_config import WarpgroupRing

pytest.importorskip("triton")
from tests.kernels import test_normed_rings, test_warpgroup_rings
from tests.kernels.test_normed_rings import row_of
from tests.kernels.test_warpgroup_rings import DEVICE, NAMES, ON_HOPPER, emulated_only

pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")

# More tiles than stages, which ask behind the last tile, and as many, which ask at once; of one row, or of three.
RINGS = (WarpgroupRing(16, 128, 3), WarpgroupRing(32, 256, 8))
NUM_OUT, NUM_IN = 48, 2048


@pytest.fixture(autouse=True)
def asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "NUM_BYTES", 300 * 2 * 200)
    monkeypatch.setattr(read_ahead, "_LEAST_BYTES", 1)


def matrix(num_out: int, num_in: int) -> Tensor:
    return torch.randn(num_out, num_in, device=DEVICE).bfloat16()


class Asked:
    """Bytes, by where they begin."""

    def __init__(self) -> None:
        self.places: Counter[tuple[int, int]] = Counter()

    def __call__(self, place: Any, num_bytes: Tensor, is_there: Tensor) -> None:
        self.places.update(zip(place.offset[is_there].tolist(), num_bytes[is_there].tolist(), strict=True))


def multiply(weight: Tensor, ring: WarpgroupRing, *, is_normed: bool, **how: Any) -> Tensor:
    torch.manual_seed(1)
    if is_normed:
        got: Tensor = test_normed_rings.kernels(**how).linear(row_of(NUM_IN), weight, ring)
    else:
        got = test_warpgroup_rings.kernels(**how).linear(torch.randn(3, NUM_IN, device=DEVICE).bfloat16(), weight, ring)
    return got


@emulated_only
@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_the_beginning_of_every_row_once(ring: WarpgroupRing, is_normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, later = matrix(NUM_OUT, NUM_IN), matrix(300, 448)[:, :320]
    expected = multiply(weight, ring, is_normed=is_normed)
    read_ahead.read_before(weight, later)
    asked = Asked()
    monkeypatch.setitem(NAMES, "bring_into_cache", asked)
    got = multiply(weight, ring, is_normed=is_normed)
    assert torch.equal(got, expected)
    assert asked.places == Counter({(448 * row, 2 * 192): 1 for row in range(300)}), "columns are whole 64s"


@emulated_only
def test_what_is_asked_for() -> None:
    weight, later = matrix(NUM_OUT, NUM_IN), matrix(300, 448)
    assert read_ahead.ahead_of(weight) == (weight, 0, 0, 0), "nobody said what is read next"
    read_ahead.read_before(weight, later)
    assert read_ahead.ahead_of(weight) == (later, 448, 300, 384)
    read_ahead.read_before(weight, later[:10])
    assert read_ahead.ahead_of(weight)[1:] == (448, 10, 896), "whole rows at most"
    read_ahead.read_before(weight, matrix(10000, 64))
    assert read_ahead.ahead_of(weight)[2:] == (0, 0), "less than 64 columns"
    for other in (later[:, 1:], matrix(300, 447)[:, :64], later.half()):
        read_ahead.read_before(weight, other)
        assert read_ahead.ahead_of(weight) == (weight, 0, 0, 0), "rows begin elsewhere, or numbers are others"


def test_small_weights_need_not_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_LEAST_BYTES", 300 * 448 * 2 + 1)
    weight = matrix(NUM_OUT, NUM_IN)
    read_ahead.read_before(weight, matrix(300, 448))
    assert read_ahead.ahead_of(weight)[2] == 0
    monkeypatch.setattr(read_ahead, "NUM_BYTES", 0)
    assert read_ahead.ahead_of(weight).later is None


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("ring", RINGS, ids=str)
def test_no_bit_depends_on_it(ring: WarpgroupRing, is_normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, later = matrix(NUM_OUT, NUM_IN), matrix(20480, 2560)
    expected = multiply(weight, ring, is_normed=is_normed)
    read_ahead.read_before(weight, later)
    monkeypatch.setattr(read_ahead, "NUM_BYTES", 16 << 20)
    assert torch.equal(multiply(weight, ring, is_normed=is_normed), expected)
    torch.cuda.synchronize()
