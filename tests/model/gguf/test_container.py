"""The container: every type of metadata, both versions, and files that are broken in every way we know."""

import struct
from pathlib import Path

import numpy as np
import pytest

from facet.errors import CheckpointError, UserError
from facet.model.gguf.container import Gguf
from facet.model.hub import local_folder
from tests.model.gguf.writing import container

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
METADATA = {
    "general.architecture": "gemma3",
    "general.alignment": 64,
    "a.bool": True,
    "a.negative": -7,
    "a.float": 0.5,
    "an.array": [1, 2, 3],
    "of.strings": ["a", "▁b", ""],
    "of.arrays": [[1, 2], [3]],
    "of.bools": [True, False],
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def whole(version: int = 3) -> bytes:
    return container(METADATA, {"x.weight": ("F32", (3, 4), VALUES.tobytes())}, version=version)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_what_was_written(version: int, tmp_path: Path) -> None:
    file = Gguf(write(tmp_path / "a.gguf", whole(version)))
    assert file.metadata == METADATA
    (tensor,) = file.tensors.values()
    assert (tensor.name, tensor.shape, tensor.type.name) == ("x.weight", (3, 4), "F32")
    assert tensor.start % 64 == 0
    assert np.array_equal(file.bytes_of(tensor).view(np.float32).reshape(3, 4), VALUES)


def number(code: str, value: float) -> bytes:
    return struct.pack(f"<{code}", value)


@pytest.mark.parametrize(("type", "code", "value"), [(0, "B", 200), (1, "b", -3), (2, "H", 60_000), (3, "h", -9)])
@pytest.mark.parametrize("is_array", [False, True])
def test_narrow_numbers(type: int, code: str, value: int, is_array: bool, tmp_path: Path) -> None:
    key = struct.pack("<Q", 1) + b"k"
    field = key + number("I", type) + number(code, value)
    if is_array:
        field = key + number("I", 9) + number("I", type) + number("Q", 2) + number(code, value) * 2
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field
    expected = [value, value] if is_array else value
    assert Gguf(write(tmp_path / "a.gguf", data)).metadata == {"k": expected}


@pytest.mark.parametrize(("type", "code", "value"), [(10, "Q", 2**60), (11, "q", -(2**60)), (12, "d", 0.1)])
def test_wide_numbers(type: int, code: str, value: float, tmp_path: Path) -> None:
    field = struct.pack("<Q", 1) + b"k" + number("I", type) + number(code, value)
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field
    assert Gguf(write(tmp_path / "a.gguf", data)).metadata == {"k": value}


def with_type(number: int) -> bytes:
    """The first tensor's type replaced."""
    data = bytearray(whole())
    at = data.index(b"x.weight") + len(b"x.weight") + 4 + 16
    data[at : at + 4] = struct.pack("<I", number)
    return bytes(data)


BROKEN = {
    "empty": (b"", "cannot be read"),
    "another magic": (b"GGML" + whole()[4:], "no GGUF file"),
    "version 1": (whole(1), "version 1"),
    "other byte order": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "byte order"),
    "head alone": (b"GGUF" + struct.pack("<I", 3), "cut short"),
    "absurd number of tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "tensors follow"),
    "absurd number of fields": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40) + bytes(99), "fields follow"),
    "absurd array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 2**50),
        "entries of 'k' follow",
    ),
    "absurd string": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62) + bytes(40), "cut short"),
    "arrays without end": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 99,
        "not known",
    ),
    "metadata cut": (whole()[:100], "cut short"),
    "data cut": (whole()[:-20], "cut short"),
    "unknown field type": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIQ", 1, b"k", 77, 0),
        "type 77",
    ),
    "unknown tensor type": (with_type(99), "is of type 99, which"),
    "type that is not read": (with_type(10), r"is of Q2_K \(type 10\), which"),
    "not whole blocks": (with_type(2), "whole blocks of 32"),
    "not text": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(40), "UTF-8"),
    "odd alignment": (container({"general.alignment": 24 + 1}, {}), "alignment"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    data, reason = BROKEN[name]
    with pytest.raises(CheckpointError, match=reason) as caught:
        Gguf(write(tmp_path / "a.gguf", data))
    assert "\n" not in str(caught.value)


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    data = whole()
    for length in range(0, len(data) - 64, 7):  # the last bytes are padding
        with pytest.raises(CheckpointError):
            Gguf(write(tmp_path / "a.gguf", data[:length]))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "llama"}, "architecture 'llama'.*gemma3, gemma3n, gemma4"),
        ({"general.architecture": "clip"}, "towers for pictures and sound alone"),
        ({}, "architecture None"),
        ({"general.architecture": "gemma3"}, "gemma3.block_count is missing"),
        (
            {
                "general.architecture": "gemma3",
                "tokenizer.ggml.model": "gemma4",
                "tokenizer.ggml.tokens": ["a", "b"],
                "tokenizer.ggml.merges": ["a c"],
            },
            "does not join two tokens",
        ),
    ],
)
def test_files_of_other_models_are_refused(
    metadata: dict[str, object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=reason):
        local_folder(str(write(tmp_path / "a.gguf", container(metadata, {}))))
    assert not (tmp_path / "cache").exists()


def test_parts_are_named_by_the_first(tmp_path: Path) -> None:
    for name, reason in (("m-00002-of-00002.gguf", "Name the first one"), ("m-00001-of-00002.gguf", "lacks")):
        with pytest.raises(CheckpointError, match=reason):
            local_folder(str(write(tmp_path / name, whole())))
        (tmp_path / name).unlink()
