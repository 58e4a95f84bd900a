"""Files that are missing, cut short, scribbled over or lied about: one clear line each, never a crash."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facet.errors import CheckpointError, UserError
from facet.model.checkpoint import match_tensors
from facet.model.families import read_model_spec
from facet.model.weight_files import find_weight_files, read_headers
from tests.model.paged_model import load
from tests.tiny_checkpoints import INDEX, SHRUNK, random_tensors, write_checkpoint, write_config

CONFIG = SHRUNK["Gemma 3 1B"]


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG), num_shards=3)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = write_checkpoint(tmp_path_factory.mktemp("whole"), CONFIG, random_tensors(CONFIG))
    return (folder / "model.safetensors").read_bytes()


class TestOneFile:
    def test_empty(self, single: Path) -> None:
        (single / "model.safetensors").write_bytes(b"")
        assert "model.safetensors is broken or cut short" in refusal(single)

    @pytest.mark.parametrize("kept", [0.001, 0.1, 0.5, 0.99])
    def test_cut_short(self, single: Path, kept: float) -> None:
        path = single / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[: int(kept * len(content))])
        message = refusal(single)
        assert "model.safetensors is broken or cut short" in message
        assert "Download it again." in message

    @pytest.mark.parametrize(
        "content",
        [
            b"\x00" * 64,
            b"\xff" * 64,
            b"<!DOCTYPE html><html>404</html>",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            struct.pack("<Q", 2) + b"{}",
            struct.pack("<Q", 2) + b"[]",
        ],
        ids=["zeros", "ones", "a web page", "a pointer", "no tensors", "no object"],
    )
    def test_something_else(self, single: Path, content: bytes) -> None:
        (single / "model.safetensors").write_bytes(content)
        refusal(single)

    def test_a_folder_of_that_name(self, tmp_path: Path) -> None:
        write_config(tmp_path, CONFIG)
        (tmp_path / "model.safetensors").mkdir()
        assert "model.safetensors" in refusal(tmp_path)

    def test_none(self, tmp_path: Path) -> None:
        assert "holds no .safetensors file" in refusal(write_config(tmp_path, CONFIG))

    def test_a_link_to_nowhere(self, tmp_path: Path) -> None:
        """How a cache looks after its blobs were deleted."""
        write_config(tmp_path, CONFIG)
        (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
        assert "model.safetensors" in refusal(tmp_path)

    @settings(max_examples=150)
    @given(position=st.integers(0, 20_000), byte=st.integers(0, 255))
    def test_any_byte_of_the_header_may_be_wrong(
        self, whole_file: bytes, tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
    ) -> None:
        header_end = 8 + struct.unpack("<Q", whole_file[:8])[0]
        position %= header_end
        path = tmp_path_factory.mktemp("scribbled") / "model.safetensors"
        path.write_bytes(whole_file[:position] + bytes([byte]) + whole_file[position + 1 :])
        with suppress(UserError):  # a wrong byte may also be harmless, in the file's own notes for example
            match_tensors(read_model_spec(CONFIG), read_headers((path,)))


class TestShards:
    def test_one_missing(self, sharded: Path) -> None:
        (sharded / "model-00002-of-00003.safetensors").unlink()
        message = refusal(sharded)
        assert "lacks model-00002-of-00003.safetensors of the 3 files its index names" in message

    def test_all_missing(self, sharded: Path) -> None:
        for path in sharded.glob("*.safetensors"):
            path.unlink()
        message = refusal(sharded)
        assert all(f"model-0000{shard}-of-00003.safetensors" in message for shard in (1, 2, 3))

    def test_one_broken(self, sharded: Path) -> None:
        path = sharded / "model-00002-of-00003.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
        assert "model-00002-of-00003.safetensors is broken or cut short" in refusal(sharded)

    def test_one_empty_of_what_it_should_hold(self, sharded: Path) -> None:
        (sharded / "model-00003-of-00003.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        assert " missing: " in refusal(sharded)


class TestTheIndex:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"3",
            b"{}",
            b'{"weight_map": []}',
            b'{"weight_map": null}',
            b'{"weight_map": {"a": 1, "b": "c"}}',
            b'{"weight_map": {"a": ["b"]}}',
            b"\xff\xfe\x00",
            b"[" * 100_000,
            b'{"weight_map": {"a": ' + b"1" * 5000 + b"}}",
        ],
        ids=lambda content: f"{content!r:.30}",
    )
    def test_broken(self, sharded: Path, content: bytes) -> None:
        (sharded / INDEX).write_bytes(content)
        assert f"{INDEX} is not a safetensors index" in refusal(sharded)

    def test_of_nothing(self, sharded: Path) -> None:
        (sharded / INDEX).write_text('{"weight_map": {}}')
        assert "names no file" in refusal(sharded)

    @pytest.mark.parametrize(
        "name", ["../model.safetensors", "/etc/hostname", "a/b.safetensors", "..", ".", "", "a\\\0b", 7]
    )
    def test_pointing_outside(self, sharded: Path, name: Any) -> None:
        index = json.loads((sharded / INDEX).read_text())
        index["weight_map"]["model.norm.weight"] = name
        (sharded / INDEX).write_text(json.dumps(index))
        message = refusal(sharded)
        assert INDEX in message

    def test_with_a_name_no_disk_can_hold(self, sharded: Path) -> None:
        (sharded / INDEX).write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
        refusal(sharded)

    def test_naming_hundreds_of_missing_files_lists_ten(self, tmp_path: Path) -> None:
        write_config(tmp_path, CONFIG)
        names = {f"t{index}": f"model-{index:05}.safetensors" for index in range(300)}
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
        with pytest.raises(CheckpointError, match="and 290 more of the 300 files its index names"):
            find_weight_files(tmp_path)
