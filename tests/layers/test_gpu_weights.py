"""Weights that kernels of a GPU multiply by: the kind chosen for a matrix, and what each computes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.kernels.arithmetic import USUAL, Arithmetic
from facet.kernels.quantized import eight_bits
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.matrix import QuantizedMatrix, stack
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows
from facet.layers.gpu_weights import EightBitsWeight, Int4Weight, Int8GroupsWeight, ShuffledWeight
from facet.layers.linear import Embedding
from facet.layers.moe import Experts
from facet.layers.placement import Placement
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight_kinds import choose_kind
from facet.model_spec import MoeSpec

CPU, GPU = torch.device("cpu"), torch.device("cuda")
DEVICE = GPU if torch.cuda.is_available() else CPU
ROUNDED = ("int8 token", "fp8 token")


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "device", "kind"),
    [
        ("fp8 token", (64, 64), torch.bfloat16, GPU, EightBitsWeight),
        ("int8 rows", (64, 64), torch.float16, GPU, EightBitsWeight),
        ("fp8 token", (4, 64, 64), torch.bfloat16, GPU, EightBitsWeight),
        ("int4 groups", (64, 64), torch.bfloat16, GPU, Int4Weight),
        ("uint4 zeros", (64, 64), torch.bfloat16, GPU, Int4Weight),
        ("fp4 coarse", (64, 64), torch.bfloat16, GPU, Int4Weight),
        ("int8 groups", (64, 256), torch.bfloat16, GPU, Int8GroupsWeight),
        ("int8 minimums", (64, 256), torch.bfloat16, GPU, Int8GroupsWeight),
        ("int8 groups", (64, 256), torch.float16, GPU, QuantizedWeight),
        ("int8 groups", (4, 64, 256), torch.bfloat16, GPU, QuantizedWeight),  # experts
        ("int8 groups", (72, 256), torch.bfloat16, GPU, QuantizedWeight),  # no whole tiles
        ("fp4 powers", (64, 64), torch.bfloat16, GPU, QuantizedWeight),
        ("uint4 minimums", (64, 256), torch.bfloat16, GPU, Int4Weight),
        ("uint4 minimums", (4, 64, 256), torch.bfloat16, GPU, Int4Weight),
        ("fp8 token", (64, 64), torch.float32, GPU, QuantizedWeight),  # kernels round to 16 bits
        ("fp8 token", (64, 72), torch.bfloat16, GPU, QuantizedWeight),  # rows that are not aligned
        ("int4 groups", (64, 64), torch.float16, GPU, QuantizedWeight),
        ("int4 groups", (4, 64, 64), torch.bfloat16, GPU, Int4Weight),  # experts
        ("int4 reordered", (64, 64), torch.bfloat16, GPU, QuantizedWeight),
        ("fp8 token", (64, 64), torch.bfloat16, CPU, QuantizedWeight),
    ],
)
def test_the_kind_of_a_matrix(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    kind: type[QuantizedWeight],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (9, 0))
    assert choose_kind(FORMATS[name], shape, dtype=dtype, device=device) is kind


def both(
    name: str, num_out: int = 96, num_in: int = 320, arithmetic: Arithmetic = USUAL
) -> tuple[EightBitsWeight, QuantizedWeight]:
    matrix = Case(format=FORMATS[name], num_out=num_out, num_in=num_in).matrix(str(DEVICE))
    kinds = (EightBitsWeight, QuantizedWeight)
    fast, plain = (kind(matrix, dtype=torch.float16, arithmetic=arithmetic) for kind in kinds)
    assert isinstance(fast, EightBitsWeight)
    return fast, plain


def close(got: Tensor, expected: Tensor, tolerance: float = 4e-3) -> None:
    assert (got.float() - expected.float()).norm() <= tolerance * expected.float().norm()


@pytest.mark.parametrize("name", ["int8 rows", "int8 token", "fp8 rows", "fp8 token"])
def test_products(name: str) -> None:
    fast, plain = both(name)
    x = torch.randn(3, 320, device=DEVICE, dtype=torch.float16)
    given = torch.randn(3, 96, device=DEVICE, dtype=torch.float16)
    close(fast.linear(x), plain.linear(x))
    close(fast.linear(x, slice(16, 48)), plain.linear(x, slice(16, 48)))
    close(fast.geglu_linear(x), plain.geglu_linear(x))
    close(fast.gated_input_linear(x, given), plain.gated_input_linear(x, given))


@pytest.mark.parametrize("name", ["int8 rows", "fp8 rows"])
@pytest.mark.parametrize("ids", [[5], [[0, 95], [7, 7]], list(range(64)) * 3])
def test_rows_are_looked_up_bit_for_bit(name: str, ids: list[int]) -> None:
    fast, plain = both(name)
    token_ids = torch.tensor(ids, device=DEVICE)
    assert torch.equal(fast.embed(token_ids, 0.3), plain.embed(token_ids, 0.3))


def test_ids_past_a_table_take_its_first_row() -> None:
    fast, _ = both("int8 rows")
    rows = fast.embed(torch.tensor([96, 0, 1], device=DEVICE, dtype=torch.int32), 2.0)
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    assert fast.embed(torch.tensor([], device=DEVICE, dtype=torch.int64), 2.0).shape == (0, 320)


@pytest.mark.parametrize("name", ["int8 rows", *ROUNDED])
def test_norms_round_for_the_products_behind_them(name: str) -> None:
    fast, plain = both(name)
    x, update = (torch.randn(3, 320, device=DEVICE, dtype=torch.float16) for _ in range(2))
    weight = torch.rand(320, device=DEVICE) + 0.5
    normed = fast.rms_norm(x, weight, 1e-6)
    assert isinstance(normed, RoundedRows) == (name in ROUNDED)
    close(fast.linear(normed), plain.linear(plain.rms_norm(x, weight, 1e-6)))
    (new, normed), (same, expected) = (each.add_norm(x, update, weight, weight, 1e-6, None) for each in (fast, plain))
    close(new, same)
    close(fast.linear(normed), plain.linear(expected))


@pytest.mark.parametrize(
    ("num_rows", "is_many", "kind"), [(1, False, MeasuredRows), (3, False, MeasuredRows), (3, True, RoundedRows)]
)
def test_activations_round_for_the_product_behind_them(
    num_rows: int, is_many: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or tell it how. Many rows are those that PyTorch multiplies. Always the same bits as without."""
    from facet.kernels.quantized.eight_bits import triton

    def choose(
        num_rows: int, num_out: int, num_in: int, sums: eight_bits.Sums, is_plain: bool = False
    ) -> eight_bits.Config | None:
        return None if is_many else eight_bits.choose_config(num_rows, num_out, num_in, sums)

    def scaled_mm(x: RoundedRows, matrix: QuantizedMatrix) -> Tensor:
        return triton.linear(x, matrix, eight_bits.Config(64, 64, 128, num_warps=4, num_stages=4))

    if DEVICE != GPU:
        monkeypatch.setattr(eight_bits, "_scaled_mm", scaled_mm)
    arithmetic = replace(USUAL, choose_eight_bits=choose)
    (gate_up, plain_gate_up), (down, plain_down) = (
        both("fp8 token", *shape, arithmetic=arithmetic) for shape in ((96, 64), (32, 48))
    )
    x = torch.randn(num_rows, 64, device=DEVICE, dtype=torch.float16)
    weight = torch.ones(64, device=DEVICE)
    normed, plain = (each.rms_norm(x, weight, 1e-6) for each in (gate_up, plain_gate_up))
    hidden = gate_up.geglu_linear(normed, down.row_codes)
    assert isinstance(hidden, kind)
    unrounded = gate_up.geglu_linear(normed)
    rounded = eight_bits.round_rows(unrounded, down.format)
    assert torch.equal(down.linear(hidden), down.linear(rounded))
    assert torch.equal(down.linear(unrounded), down.linear(rounded))
    # A hidden number between two codes may fall to either side, and they are up to an eighth of it apart.
    close(down.linear(hidden), plain_down.linear(plain_gate_up.geglu_linear(plain)), 0.03)


def test_four_bits_of_experts_multiply_one_by_one_too() -> None:
    """As where the other matrix of the experts is of another kind."""
    matrix = stack([Case(format=FORMATS["int4 groups"], num_out=64, num_in=256).matrix(str(DEVICE)) for _ in range(2)])
    weight, plain = (kind(matrix, dtype=torch.float32, arithmetic=USUAL) for kind in (Int4Weight, QuantizedWeight))
    x, is_cuda = torch.randn(3, 256, device=DEVICE), DEVICE == GPU
    weight.prepare(is_gated=True)
    assert weight.has_kernels
    torch.testing.assert_close(
        weight.product(x, expert=1), plain.product(x, expert=1), atol=1e-2 if is_cuda else 1e-4, rtol=1e-4
    )


def test_experts_of_two_kinds_have_no_kernels_but_some(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(dtype=torch.bfloat16, device=CPU)
    experts = Experts(MoeSpec(num_experts=2, num_chosen=1, width=32), 64, 1e-6, placement)
    assert experts.has_kernels
    matrix = QuantizedMatrix.empty(FORMATS["int4 groups"], (2, 64, 64), CPU)
    experts.gate_up.weight = Int4Weight(matrix, dtype=torch.bfloat16, arithmetic=USUAL)
    assert not experts.has_kernels
    experts.down.weight = QuantizedWeight(matrix, dtype=torch.bfloat16, arithmetic=USUAL)
    assert not experts.has_kernels
    monkeypatch.setattr(QuantizedWeight, "has_kernels", True)  # as on a GPU
    assert experts.has_kernels, "of any format beside four bits"
    experts.gate_up.weight, experts.down.weight = experts.down.weight, experts.gate_up.weight
    assert not experts.has_kernels


@pytest.mark.parametrize(
    ("kind", "name", "is_gated"),
    [
        (Int4Weight, "int4 groups", False),
        (Int4Weight, "int4 groups", True),
        (Int4Weight, "uint4 zeros", True),
        (Int4Weight, "uint4 minimums", True),
        (Int4Weight, "fp4 coarse", False),
        (Int8GroupsWeight, "int8 groups", True),
        (Int8GroupsWeight, "int8 minimums", False),
    ],
)
def test_codes_are_the_same_matrix_once_prepared(kind: type[ShuffledWeight], name: str, is_gated: bool) -> None:
    matrix = Case(format=FORMATS[name], num_out=64, num_in=256).matrix()
    weight = kind(matrix, dtype=torch.bfloat16, arithmetic=USUAL)
    ids = torch.tensor([3, 0, 63])
    rows = weight.look_up(ids)
    assert not weight.is_gated
    weight.prepare(is_gated=is_gated)
    assert weight.is_gated is is_gated
    assert torch.equal(weight.matrix.values(), matrix.values())
    assert torch.equal(weight.look_up(ids), rows)
    num_bytes = sum(tensor.nbytes for tensor in weight.state_dict().values())
    assert num_bytes == matrix.format.num_bytes((64, 256)), "nothing is kept twice"


@pytest.mark.parametrize("is_head", [False, True])
def test_a_table_that_makes_logits_too_is_prepared(is_head: bool) -> None:
    """Its rows are the same."""
    placement = Placement(dtype=torch.float32, device=DEVICE)
    table = Embedding(64, 256, 3.0, placement, is_head=is_head)
    matrix = Case(format=FORMATS["int8 minimums"], num_out=64, num_in=256).matrix(str(DEVICE))
    weight = Int8GroupsWeight(matrix, dtype=torch.float32, arithmetic=USUAL)
    table.weight = weight
    ids, x = torch.tensor([3, 0, 63, 64], device=DEVICE), torch.randn(5, 256, device=DEVICE)
    rows, logits = table.look_up(ids), table(x)
    table.prepare()
    assert set(weight.state_dict()) == ({"codes", "scales"} if is_head else set(matrix.tensors()))
    assert torch.equal(table.look_up(ids), rows)
    close(table(x), logits, 1e-2 if DEVICE == GPU else 1e-5)


@pytest.mark.parametrize("name", ["int8 groups", "int8 minimums"])
def test_products_of_codes_in_groups(name: str) -> None:
    """On a CPU by values, as many rows on a GPU."""
    matrix = Case(format=FORMATS[name], num_out=64, num_in=256).matrix(str(DEVICE))
    dtype = torch.bfloat16 if DEVICE == GPU else torch.float32
    plain = QuantizedWeight(matrix, dtype=dtype, arithmetic=USUAL)
    x, given = (torch.randn(3, width, device=DEVICE, dtype=dtype) for width in (256, 64))
    for is_gated in (False, True):
        weight = Int8GroupsWeight(matrix, dtype=dtype, arithmetic=USUAL)
        close(weight.linear(x), plain.linear(x), 1e-2)
        weight.prepare(is_gated=is_gated)
        assert weight.has_kernels
        if is_gated:
            close(weight.geglu_linear(x), plain.geglu_linear(x), 1e-2)
        else:
            close(weight.linear(x), plain.linear(x), 1e-2)
            close(weight.linear(x, slice(16, 48)), plain.linear(x, slice(16, 48)), 1e-2)
            close(weight.gated_input_linear(x, given), plain.gated_input_linear(x, given), 1e-2)
