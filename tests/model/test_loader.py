"""What the user asked for, answered: types, devices, lengths, and whether the weights can fit at all."""

from pathlib import Path

import pytest
import torch

from facet.config import ModelConfig
from facet.errors import CapacityError, ConfigError
from facet.model import resolving
from facet.model.families import read_model_spec
from facet.model.loader import load_model, memory_needed
from facet.model.named_model import read_spec
from facet.model.resolving import check_dtype, resolve_context_length, resolve_device, resolve_dtype
from tests.model.paged_model import load
from tests.published_configs import PUBLISHED
from tests.tiny_checkpoints import SHRUNK, write_config

CPU = torch.device("cpu")
SPEC = read_model_spec(SHRUNK["Gemma 3 1B"])  # 64 positions


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="No model was named"):
        read_spec(ModelConfig())


@pytest.mark.parametrize("asked", ["int8", "fp16", "", "torch.float16"])
def test_an_unknown_dtype_is_answered_with_the_known(asked: str) -> None:
    with pytest.raises(ConfigError, match="Known: auto, bfloat16, float16, half, float32, float"):
        resolve_dtype(asked, torch.bfloat16, CPU)


@pytest.mark.parametrize("has_products", [False, True])
def test_auto_computes_in_float32_where_bfloat16_has_no_products(
    monkeypatch: pytest.MonkeyPatch, has_products: bool
) -> None:
    monkeypatch.setattr(resolving, "multiplies_bfloat16", lambda device: has_products)
    assert resolve_dtype("auto", torch.bfloat16, CPU) == (torch.bfloat16 if has_products else torch.float32)
    assert resolve_dtype("auto", torch.float16, CPU) == torch.float16
    assert resolve_dtype("bfloat16", torch.bfloat16, CPU) == torch.bfloat16  # asked for by name


@pytest.mark.parametrize("asked", ["gpu", "", "cuda:x", "cuda:-1", "cpu:cuda", "tpu"])
def test_an_unknown_device_is_answered_with_the_known(asked: str) -> None:
    with pytest.raises(ConfigError, match=r"Known: auto, cpu, cuda, cuda:N\."):
        resolve_device(asked)


@pytest.mark.parametrize("asked", ["meta", "mps", "xpu:0"])
def test_a_device_of_another_make_is_refused(asked: str) -> None:
    with pytest.raises(ConfigError, match="Supported: auto, cpu, cuda, cuda:N"):
        resolve_device(asked)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"cuda:1 was asked for, but this machine shows 1 GPU\."):
        resolve_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match="--device cpu always works"):
        resolve_device("cuda")


def test_a_type_that_the_card_cannot_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ConfigError, match=r"Tesla T4 has compute capability 7\.5.* --dtype float16"):
        check_dtype(torch.bfloat16, torch.device("cuda"))
    check_dtype(torch.float16, torch.device("cuda"))


def test_auto_device_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("asked", [0, -1, 65, 10**9])
def test_a_context_outside_the_model(asked: int) -> None:
    with pytest.raises(ConfigError, match="outside 1 to 64, the longest context of this model"):
        resolve_context_length(asked, SPEC)


@pytest.mark.parametrize(("asked", "expected"), [(None, 64), (1, 1), (64, 64)])
def test_a_context_inside_the_model(asked: int | None, expected: int) -> None:
    assert resolve_context_length(asked, SPEC) == expected


def test_the_context_bounds_the_tables_of_angles(tmp_path: Path) -> None:
    folder = write_config(tmp_path, SHRUNK["Gemma 4 31B"])
    loaded = load(folder, load_format="dummy", max_model_len=10)
    assert loaded.context_length == 10
    assert loaded.model.rotary.table("global").shape[0] == 10


class TestMemory:
    def test_needed_is_what_a_model_takes(self, tmp_path: Path) -> None:
        for name in PUBLISHED:
            loaded = load(write_config(tmp_path / name, SHRUNK[name]), load_format="dummy", dtype="float32")
            weights = sum(parameter.nbytes for parameter in loaded.model.parameters())
            tables = sum(buffer.nbytes for buffer in loaded.model.buffers())
            assert memory_needed(loaded.spec, loaded.context_length, torch.float32) == weights + tables

    @pytest.mark.parametrize(
        "change",
        [{"vocab_size": 2**31 - 1, "hidden_size": 2**20}, {"intermediate_size": 2**31 - 1}, {"head_dim": 2**30}],
    )
    def test_a_model_larger_than_the_machine_is_refused_at_once(
        self, change: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("facet.model.loader.Gemma", lambda *_: pytest.fail("memory was asked for"))
        folder = write_config(tmp_path, SHRUNK["Gemma 3 1B"] | change)
        with pytest.raises(CapacityError, match=r"take [\d,.]+ GiB as float32.* has [\d,.]+ GiB of memory"):
            load(folder, load_format="dummy", dtype="float32")

    def test_a_gpu_that_is_too_small_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def out_of_memory(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr("facet.model.loader.Gemma", out_of_memory)
        monkeypatch.setattr("facet.model.loader.resolve_device", lambda *_: torch.device("cuda"))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (2**30, 24 * 2**30))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
        folder = write_config(tmp_path, SHRUNK["Gemma 3 1B"])
        with pytest.raises(CapacityError, match=r"cuda has 24\.0 GiB of memory, 1\.0 GiB of it free"):
            load_model(ModelConfig(model=str(folder), load_format="dummy"))
