"""Kernels compiled for Hopper, on any machine: registers, and what they take of a multiprocessor."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

PREFILL = ("shared_512", "separate_512", "separate_256")
MOST_REGISTERS = {
    "int4_8": 144,
    "int4_64": 168,
    "int4_experts": 168,
    "fp4_8": 112,
    "q4_k_16": 184,
    "q4_k_64": 200,
    "q4_k_experts": 168,
}
# Registers: 16 warps of few rows have room on a multiprocessor, or 32 that divide inputs; 12 of many rows.
INT8_GROUPS = {
    "q8_0_16": 128,
    "q8_0_64": 168,
    "q8_0_of_down": 64,
    "q6_k_64": 168,
    "q5_k_8": 128,
    "q5_k_32": 168,
    "q5_k_64": 168,
    "q5_k_of_down": 80,
}
# Programs that a multiprocessor has room for, of tens of rows, bytes that are left to local memory: of 128 rows,
# addresses, and what the end of a tile group has no registers for.
WIDE_OF_GROUPS = {
    **{
        f"{codes}_wide_{rows}": (num_programs, most_bytes)
        for codes, rows, num_programs, most_bytes in (
            ("q8_0", 16, 2, 0),
            ("q6_k", 32, 2, 0),
            ("q5_k", 32, 2, 0),
            ("q5_k", 64, 1, 0),
            ("q6_k", 128, 1, 184),
            ("q5_k", 128, 1, 184),
        )
    },
    "q5_k_wide_narrow_down": (2, 0),
}
# As these, of 4-bit codes: all shapes of Q4_K, which has minimums and the least to spare, and of others where they are
# closest to what there is room for.
WIDE_OF_4_BITS = {
    f"{codes}_wide_{shape}": (num_programs, 0)
    for shape, num_programs, kinds in (
        ("16", 4, ("int4", "q4_k")),
        ("32", 2, ("fp4", "q4_k")),
        ("64", 1, ("int4", "int4_half", "int4_zeros", "q4_k")),
        ("narrow_down", 2, ("int4", "q4_k")),
        ("narrow_o", 4, ("int4_zeros", "q4_k")),
    )
    for codes in kinds
}
WIDE = WIDE_OF_GROUPS | WIDE_OF_4_BITS
DEQUANTIZE = ("q8_0_dequantize", "q6_k_dequantize", "q5_k_dequantize")
ANY_FORMAT = ("q4_k", "q6_k")
# Programs that a multiprocessor has room for, products of a tile, registers.
RINGS = {
    "ring_of_down": (3, 8, 128),
    "ring_of_gate_up": (6, 16, 232),
    **{f"{codes}_ring_of_down": (2, 8, 64) for codes in ("fp8", "int8")},
    **{f"{codes}_ring_of_gate_up": (6, 4, 64) for codes in ("fp8", "int8")},
    "fp8_ring_that_rounds": (2, 8, 128),
    "int4_ring_of_gate_up": (6, 16, 80),
    "fp4_ring_of_gate_up": (6, 16, 80),
    "int4_ring_of_down": (3, 8, 80),
    "int4_ring_of_qkv": (4, 8, 80),
    "int4_ring_of_narrow_down": (2, 8, 64),
    "int4_ring_of_gated_input": (6, 8, 80),
    "q4_k_ring_of_gate_up": (3, 40, 168),
    "q4_k_ring_of_down": (3, 16, 80),
    "q4_k_ring_of_qkv": (2, 24, 136),
    "q4_k_ring_of_narrow_down": (2, 16, 104),
    "int4_ring_of_16_of_gate_up": (3, 64, 168),
    "int4_ring_of_16_of_down": (1, 64, 255),
    "int4_ring_of_16_of_qkv": (2, 32, 144),
    "int4_ring_of_16_of_o": (1, 64, 255),
    "int4_ring_of_16_of_narrow_gate_up": (3, 32, 144),
    "int4_ring_of_16_of_narrow_down": (1, 32, 128),
    "int4_ring_of_16_of_gated_input": (6, 16, 144),
}
# The same of 8-bit codes in groups, whose minimums take products of their own. Q6_K differs from Q8_0 by its coarse
# scales, and from Q5_K by having no minimums: its tall rings have the fewest registers to spare.
RINGS_OF_GROUPS = {
    f"{codes}_ring_of_{matrix}": (num_programs, num_products, most_registers)
    for matrix, num_programs, of_codes, of_minimums, most_registers in (
        ("gate_up", 6, 8, 4, 80),
        ("down", 3, 4, 4, 80),
        ("narrow_down", 2, 4, 4, 64),
        ("16_of_gate_up", 3, 32, 8, 168),
        ("16_of_down", 3, 8, 8, 80),
        ("16_of_narrow_down", 2, 8, 8, 64),
    )
    for codes, num_products in (("q8_0", of_codes), ("q6_k", of_codes), ("q5_k", of_codes + of_minimums))
    if codes != "q6_k" or matrix in ("down", "16_of_down", "16_of_narrow_down")
}
RINGS_OF_4_BITS = tuple(name for name in RINGS if name.startswith(("int4_ring", "q4_k_ring")))
# Programs that a multiprocessor has room for, registers, products of a tile.
WARPGROUP_RINGS = {
    "warpgroup_ring_of_down": (1, 64, 16),
    "warpgroup_ring_of_gate_up": (1, 64, 16),
    "warpgroup_ring_of_gated_input": (1, 48, 16),
    "warpgroup_ring_of_16_rows": (1, 48, 16),
    "warpgroup_ring_of_32_rows": (1, 64, 16),
    "warpgroup_ring_of_64_rows": (1, 80, 8),
    "warpgroup_ring_of_64_rows_of_gate_up": (1, 224, 16),
    "warpgroup_ring_of_80_outputs": (1, 64, 16),
    "warpgroup_ring_of_two_programs": (2, 64, 16),
    "warpgroup_ring_of_64_rows_of_two_programs": (2, 112, 16),
}
# Likewise, of a row that they make themselves.
NORMED_RINGS = {
    "normed_ring_of_qkv": (1, 96, 16),
    "normed_ring_of_gate_up": (1, 96, 16),
    "normed_ring_of_gated_input": (1, 80, 16),
    "normed_ring_of_80_outputs": (1, 128, 16),
    "normed_ring_of_narrow_qkv": (1, 80, 16),
}
# And of few rows of 26B-A4B's experts.
EXPERT_RINGS = {
    "expert_ring_of_gate_up": (1, 48, 32),
    "expert_ring_of_down": (2, 48, 16),
}
# What sixteen warps of 128 registers leave no room for, or of 64.
MOST_LOCAL_BYTES = {
    "int4_ring_of_16_of_narrow_down": 16,
    "q6_k_ring_of_16_of_narrow_down": 24,
    "q5_k_ring_of_16_of_narrow_down": 48,
}
# Programs that a multiprocessor has room for, registers; those by warpgroups as launched.
FP8_IN_ORDER = {
    "fp8_by_warpgroups_of_down": (1, 168),
    "fp8_by_warpgroups_of_gate_up": (1, 168),
    "fp8_in_turn_of_down": (1, 255),
    "fp8_in_turn_of_gate_up": (1, 255),
    "fp8_apart_of_down": (2, 168),
    "fp8_apart_of_gate_up": (2, 128),
}
# Registers, of heads whose codes are widened: as many as leave 16 warps on a multiprocessor; of a single row 32, or 28.
HEADS = {"int8_head": 128, "fp8_head": 128, "int8_row_of_head": 64, "fp8_row_of_head": 72}
EMBEDDINGS = ("int8_embedding", "fp8_embedding")
ROUNDED = ("round_geglu_31b", "round_geglu_e4b", "rounded_add_norm")
# Norms of batch-invariant answers, by the registers of a thread that leave room for as many programs as are launched.
NORMS = {
    f"{name}_of_{width}": most_registers
    for name in ("add_norm", "coded_add_norm", "sum_of_norms", "router_norms")
    for width, most_registers in ((2560, 64), (5376, 128))
}
STREAMS = {"predict_streams": 80, "correct_streams": 64}
DRAFTS = ("drafts_e4b_sliding", "drafts_e4b_global", "drafts_31b_sliding")
SHARES = (
    "shares_e4b_sliding",
    "shares_e4b_sliding_left",
    "shares_31b_sliding",
    "shares_e4b_global",
    "shares_e4b_sliding_drafts",
    "shares_e4b_global_drafts",
    "decode_ring_e4b",
    "decode_ring_31b",
    "decode_ring_3_27b_global",
)
WIDE_HEADS = ("decode_ring_e2b_global", "decode_ring_31b_global")
EXPERTS = ("experts_gate_up", "experts_down")
SORTING = ("count_pairs", "place_pairs", "place_512_pairs", "place_64_pairs")
SUM = "sum_over_ranks"
NARROW = "narrow_rows"
MULTIPROCESSOR_BYTES = 232_448
# All kernels are compiled before the first test, which takes a slow machine minutes.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, Any]]:
    names = (
        *PREFILL,
        *MOST_REGISTERS,
        *INT8_GROUPS,
        *WIDE,
        *DEQUANTIZE,
        *ANY_FORMAT,
        *RINGS,
        *RINGS_OF_GROUPS,
        *WARPGROUP_RINGS,
        *NORMED_RINGS,
        *EXPERT_RINGS,
        *FP8_IN_ORDER,
        *HEADS,
        *EMBEDDINGS,
        *ROUNDED,
        *NORMS,
        *(f"{name}_in_turn" for name in NORMS),
        *STREAMS,
        *DRAFTS,
        *SHARES,
        *WIDE_HEADS,
        *EXPERTS,
        *SORTING,
        SUM,
        NARROW,
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.kernels.compile_for_hopper", *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", PREFILL)
def test_prefill_fits_on_the_card(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """Registers as launched, nothing in local memory, and the shared memory of a Hopper multiprocessor is enough."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["reg"], found["stack"], found["local"]) == (168, 0, 0)
    assert found["shared"] <= MULTIPROCESSOR_BYTES
    assert found["products"] > 0


@pytest.mark.parametrize("name", MOST_REGISTERS)
def test_4_bit_products_compile_without_spills(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """And leave registers for 14, 12 or 16 warps on a multiprocessor; 10 where there are minimums and many rows."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["reg"] <= MOST_REGISTERS[name]
    assert found["added_halves"] == 0, "codes are unpacked by instructions that multiply and add"
    assert found["products"] > 0


@pytest.mark.parametrize("name", INT8_GROUPS)
def test_8_bit_products_of_groups_compile_without_spills(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """But for an address outside of the loop."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["stack"] + found["local"] <= 8
    assert found["reg"] <= INT8_GROUPS[name]
    assert (found["added_halves"], found["conversions"]) == (0, 0), "codes are unpacked by multiplying and adding"
    assert found["products"] > 0


@pytest.mark.parametrize("name", WIDE)
def test_products_of_tens_of_rows_fit_on_the_card(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """And start eight products in a turn, or sixteen, of which they never wait for those of the last four."""
    num_programs, most_bytes = WIDE[name]
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["stack"] + found["local"] <= most_bytes
    assert found["reg"] <= 128
    assert num_programs * (found["shared"] + 1024) <= MULTIPROCESSOR_BYTES
    has_long_turns = name in WIDE_OF_4_BITS and name.endswith(("_16", "_32", "_o"))  # of 256 inputs
    assert (found["products"], found["waits"]) == ((16, 5) if has_long_turns else (8, 3))
    assert (found["added_halves"], found["conversions"]) == (0, 0), (
        "codes become numbers by their place under an exponent"
    )


@pytest.mark.parametrize("name", DEQUANTIZE)
def test_8_bit_codes_of_groups_become_values_some_at_a_time(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """Stored four or eight at once, without instructions that convert codes and without shared memory."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"], found["shared"]) == (0, 0, 0)
    assert (found["conversions"], found["single_stores"]) == (0, 0)
    assert found["reg"] <= 64


@pytest.mark.parametrize("name", ANY_FORMAT)
def test_products_of_any_format_compile_without_spills(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """And leave registers for three programs of four warps on a multiprocessor."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["reg"] <= 168
    assert found["products"] > 0


@pytest.mark.parametrize("name", FP8_IN_ORDER)
def test_many_rows_of_fp8_fit_on_the_card(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """Sums of products, of shares and of those before them, and nothing in local memory."""
    found, (num_programs, most_registers) = compiled[name], FP8_IN_ORDER[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["reg"] <= most_registers
    assert num_programs * found["shared"] <= MULTIPROCESSOR_BYTES
    assert found["products"] > 0


@pytest.mark.parametrize("name", [*RINGS, *RINGS_OF_GROUPS])
def test_a_ring_leaves_room_for_others(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """And multiplies a tile in as many products as its inputs take."""
    found, (num_programs, num_products, most_registers) = compiled[name], (RINGS | RINGS_OF_GROUPS)[name]
    assert "error" not in found, found["error"]
    assert found["stack"] + found["local"] <= MOST_LOCAL_BYTES.get(name, 0)
    assert found["reg"] <= most_registers
    assert num_programs * (found["shared"] + 1024) <= MULTIPROCESSOR_BYTES
    assert found["products"] == 2 * num_products, "of a tile in the loop, and of the first or last; of two turns"


@pytest.mark.parametrize("name", [*WARPGROUP_RINGS, *NORMED_RINGS])
def test_products_of_a_warpgroup_follow_each_other(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """They are waited for a tile at a time, and at the end."""
    rings = WARPGROUP_RINGS | NORMED_RINGS
    found, (num_programs, most_registers, num_products) = compiled[name], rings[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert num_programs * (found["shared"] + 1024) <= MULTIPROCESSOR_BYTES
    assert found["reg"] <= most_registers
    assert found["products"] == 2 * num_products, "of the first tile, and of one in the loop"
    assert found["waits"] <= 3
    assert found["single_stores"] == 0, "neighbours are stored together"


@pytest.mark.parametrize("name", NORMED_RINGS)
def test_a_row_is_added_up_as_by_norms(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """A thread has eight columns of 256 that a warp has, in each of the parts."""
    by_norms, parts = compiled["add_norm_of_2560"]["reduced"], compiled[name]["reduced"]
    assert all("sizePerThread = [1, 8], threadsPerWarp = [1, 32], warpsPerCTA = [1, 16]" in each for each in by_norms)
    own = "sizePerThread = [1, 1, 8], threadsPerWarp = [1, 32, 1], warpsPerCTA = [4, 1, 1]"
    assert len(by_norms) == 2
    assert len(parts) >= 2
    assert all(own in each for each in parts)


@pytest.mark.parametrize("name", EXPERT_RINGS)
def test_products_of_experts_follow_each_other(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """As those of other warpgroups. The few tiles of down may be unrolled, and each is waited for."""
    found, (num_programs, most_registers, num_products) = compiled[name], EXPERT_RINGS[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert num_programs * (found["shared"] + 1024) <= MULTIPROCESSOR_BYTES
    assert found["reg"] <= most_registers
    num_tiles, others = divmod(found["products"], num_products)
    assert (num_tiles >= 2, others) == (True, 0)
    assert found["waits"] <= num_tiles + 1
    assert found["single_stores"] == 0, "neighbours are stored together"


@pytest.mark.parametrize("name", [name for name in RINGS_OF_4_BITS if "_16_" not in name])
def test_warps_with_rings_of_their_own_meet_at_the_end(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """Once before their sums are stored, once after. And what PTX addresses is all that there is of shared memory."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["barriers"] == 2
    assert found["shared"] == found["ring"] + 128
    assert found["added_halves"] == 0, "codes are unpacked by instructions that multiply and add"


@pytest.mark.parametrize("name", RINGS_OF_GROUPS)
def test_rings_of_groups_meet_at_the_end(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["barriers"] == 2
    assert found["shared"] == found["ring"] + 128
    assert (found["added_halves"], found["conversions"]) == (0, 0), "codes are unpacked by multiplying and adding"


@pytest.mark.parametrize("name", [name for name in RINGS_OF_4_BITS if "_16_" in name])
def test_a_ring_that_warps_share_has_one_barrier_a_turn(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """Two turns are in the loop. Twelve barriers follow it, and others come between the copies that fill the ring."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["barriers"] <= 14 + found["stages"] // 2 - 1
    assert found["added_halves"] == 0, "codes are unpacked by instructions that multiply and add"


@pytest.mark.parametrize("name", HEADS)
def test_codes_of_a_head_are_loaded_wide_and_not_converted_one_by_one(
    name: str, compiled: dict[str, dict[str, Any]]
) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["reg"] <= HEADS[name]
    assert found["wide_loads"] >= 8, "the first codes, and those of a turn"
    assert found["conversions"] == 0, "few converters would be waited for"


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_rows_of_codes_are_looked_up_in_registers(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)


@pytest.mark.parametrize("name", ROUNDED)
def test_rows_are_rounded_in_registers(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """And 32 warps of them fit on a multiprocessor: two programs with 31B's hidden rows, four with others."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["reg"] <= 64


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_rows_in_turn_add_as_those_of_one(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """What is summed lies in registers alike, and is the same instructions: so are its bits."""
    one, in_turn = compiled[name], compiled[f"{name}_in_turn"]
    for found in (one, in_turn):
        assert "error" not in found, found["error"]
        assert (found["stack"], found["local"]) == (0, 0)
    assert in_turn["reduced"] == one["reduced"] != []
    assert in_turn["arithmetic"] == one["arithmetic"]
    assert all(one["arithmetic"])
    assert in_turn["reg"] <= NORMS[name]
    assert in_turn["shared"] > one["shared"], "rows are copied ahead of time"


def test_sums_of_slices_are_added_apart(compiled: dict[str, dict[str, Any]]) -> None:
    """A thread has four values of a tile of 32 rows and 16 ranks. Each is added once a slice and once behind the last:
    where the compiler puts one into a product, it is missing here."""
    found = compiled[NARROW]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["arithmetic"][0] == 2 * 4
    assert found["reg"] <= 80


@pytest.mark.parametrize("name", STREAMS)
def test_rows_of_all_streams_stay_in_registers(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """And three programs of eight warps fit on a multiprocessor, or four."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["reg"] <= STREAMS[name]


@pytest.mark.parametrize("name", DRAFTS)
def test_rows_of_drafts_leave_room_for_two_programs(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["products"] > 0
    assert 2 * (found["shared"] + 1024) <= MULTIPROCESSOR_BYTES
    assert found["reg"] <= 256


@pytest.mark.parametrize("name", SHARES)
def test_shares_leave_room_for_two_programs(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["stack"] <= 16, "all sums are in registers"
    assert found["products"] > 0
    assert 2 * (found["shared"] + 1024) <= MULTIPROCESSOR_BYTES
    assert found["reg"] <= 256


@pytest.mark.parametrize("name", WIDE_HEADS)
def test_rings_of_wide_heads_fit_on_the_card(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["stack"] == 0
    assert found["shared"] + 1024 <= MULTIPROCESSOR_BYTES


@pytest.mark.parametrize("name", EXPERTS)
def test_products_of_experts_fit_on_the_card(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert (found["reg"], found["stack"], found["local"]) == (168, 0, 0)
    assert found["shared"] <= MULTIPROCESSOR_BYTES
    assert found["single_stores"] == 0, "eight numbers are stored at a time"
    assert found["products"] == 2 * 2 * 2 * 4, "of both warpgroups, wide and narrow tiles, the first stage and others"


@pytest.mark.parametrize("name", SORTING)
def test_pairs_are_sorted_in_registers(name: str, compiled: dict[str, dict[str, Any]]) -> None:
    """But for single numbers, and two programs fit on a multiprocessor."""
    found = compiled[name]
    assert "error" not in found, found["error"]
    assert found["stack"] + found["local"] <= 8
    assert found["reg"] <= 128


def test_signals_of_a_sum_over_ranks_reach_other_cards(compiled: dict[str, dict[str, Any]]) -> None:
    found = compiled[SUM]
    assert "error" not in found, found["error"]
    assert (found["stack"], found["local"]) == (0, 0)
    assert found["signals"] == [1, 1], "one instruction tells all ranks, another hears of all"
    assert found["reg"] * 128 * 4 <= 65_536, "four programs on a multiprocessor, so that all of a launch run together"
