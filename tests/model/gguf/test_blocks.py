"""Blocks of every type become matrices of the same numbers, bit for bit, in no more bytes than their bits ask for."""

import numpy as np
import pytest
import torch

from facet.model.gguf.blocks import read_blocks
from facet.model.gguf.types import BY_NAME
from tests.model.gguf.writing import QUANTIZED, quantize


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_numbers_are_those_of_the_formula(name: str) -> None:
    values = np.random.default_rng(1).standard_normal((12, 512)).astype(np.float32)
    values[3] = 0
    octets, expected = quantize(values, name)
    type = BY_NAME[name]
    assert len(octets) == type.num_bytes(values.shape)
    matrix = read_blocks(type, torch.frombuffer(bytearray(octets), dtype=torch.uint8).view(12, -1))
    assert torch.equal(matrix.values(), torch.from_numpy(expected))
    assert np.abs(expected - values).max() < (0.5 if "4" in name else 0.25)
    assert type.format is not None
    assert type.format.num_bytes(values.shape) == sum(tensor.nbytes for tensor in matrix.tensors().values())
    bits = 8 * type.format.num_bytes(values.shape) / values.size
    assert bits <= (5 if name.startswith("Q4") else 9)


@pytest.mark.parametrize("name", QUANTIZED)
def test_any_bytes_are_read_as_the_formula_reads_them(name: str) -> None:
    """Random codes and scales: all of their bits are in use."""
    type = BY_NAME[name]
    octets = np.random.default_rng(2).integers(0, 256, (3, 2, type.block_bytes), dtype=np.uint8)
    starts = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(name, (0, 2))
    for start in starts:  # scales that are numbers
        octets[..., start : start + 2] = np.array([0.37], np.float16).view(np.uint8)
    matrix = read_blocks(type, torch.from_numpy(octets.reshape(3, -1)))
    d = np.float32(np.float16(0.37))
    expected = np.stack([_decode(name, block, d) for block in octets.reshape(-1, type.block_bytes)])
    assert torch.equal(matrix.values(), torch.from_numpy(expected.reshape(3, -1)))


def _decode(name: str, block: np.ndarray[tuple[int], np.dtype[np.uint8]], d: np.float32) -> list[np.float32]:
    """One block, value by value."""
    b = [int(octet) for octet in block]
    signed = [octet - 256 if octet > 127 else octet for octet in b]
    if name == "Q8_0":
        return [d * np.float32(signed[2 + j]) for j in range(32)]
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        at = 2 if name.endswith("0") else 4
        high = int.from_bytes(bytes(b[at : at + 4]), "little") if name.startswith("Q5") else 0
        at += 4 if name.startswith("Q5") else 0
        codes = [(b[at + j % 16] >> (4 * (j // 16)) & 15) | ((high >> j & 1) << 4) for j in range(32)]
        if name.endswith("1"):
            return [d * np.float32(code) + d for code in codes]
        middle = 16 if name == "Q5_0" else 8
        return [d * np.float32(code - middle) for code in codes]
    if name == "Q6_K":
        found = []
        for j in range(256):
            half, quarter, place = j // 128, j % 128 // 32, j % 32
            low = b[64 * half + 32 * (quarter % 2) + place] >> (4 * (quarter // 2)) & 15
            high = b[128 + 32 * half + place] >> (2 * quarter) & 3
            found.append((d * np.float32(signed[192 + j // 16])) * np.float32((low | high << 4) - 32))
        return found
    scales = b[4:16]
    found = []
    for j in range(256):
        group, place = j // 32, j % 32
        if group < 4:
            scale, minimum = scales[group] & 63, scales[group + 4] & 63
        else:
            scale = (scales[group + 4] & 15) | (scales[group - 4] >> 6 << 4)
            minimum = (scales[group + 4] >> 4) | (scales[group] >> 6 << 4)
        at = 48 if name == "Q5_K" else 16
        code = b[at + 32 * (group // 2) + place] >> (4 * (group % 2)) & 15
        if name == "Q5_K":
            code |= (b[16 + place] >> group & 1) << 4
        found.append((d * np.float32(scale)) * np.float32(code) - d * np.float32(minimum))
    return found
