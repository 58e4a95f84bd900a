"""Settings given to `LLM` have the types of their fields; others are refused by name before anything is loaded."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from facet import LLM, ConfigError
from facet.config import ServerConfig
from facet.idle_settings import IDLE_SETTINGS
from facet.offline.setting_types import checked
from facet.offline.settings import read_settings

HUGE = 10**5000  # of more digits than Python writes


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": 5}, "model is 5, but must be a text."),
        ({"model": b"x"}, "model is b'x', but must be a text."),
        ({"max_model_len": "8k"}, "max_model_len is '8k', but must be an integer or 'auto'."),
        ({"max_model_len": 100.0}, "max_model_len is 100.0, but must be an integer or 'auto'."),
        ({"max_num_seqs": "4"}, "max_num_seqs is '4', but must be an integer."),
        ({"max_num_batched_tokens": True}, "max_num_batched_tokens is True, but must be an integer."),
        ({"seed": "x"}, "seed is 'x', but must be an integer."),
        ({"gpu_memory_utilization": "0.9"}, "gpu_memory_utilization is '0.9', but must be a number."),
        ({"gpu_memory_utilization": False}, "gpu_memory_utilization is False, but must be a number."),
        ({"max_step_ms": HUGE}, "max_step_ms is a number too long to show, but must be a number."),
        ({"kv_cache_dtype": 5}, "kv_cache_dtype is 5, but must be a text."),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching is 'no', but must be True or False."),
        ({"batch_invariant": 1}, "batch_invariant is 1, but must be True or False."),
        ({"separate_process": "no"}, "separate_process is 'no', but must be True or False."),
        ({"show_progress": None}, "show_progress is None, but must be True or False."),
        (
            {"override_generation_config": "x"},
            "override_generation_config is 'x', but must be a dict such as {\"name\": value}.",
        ),
        ({"hf_overrides": {5: 5}}, 'hf_overrides is {5: 5}, but must be a dict such as {"name": value}.'),
        (
            {"speculative_config": "suffix"},
            "speculative_config is 'suffix', but must be a dict such as {\"name\": value}.",
        ),
        ({"cudagraph_capture_sizes": [1, "2"]}, "cudagraph_capture_sizes is [1, '2'], but must be a list of integers."),
        ({"kv_cache_dtype_skip_layers": "sliding"}, "kv_cache_dtype_skip_layers is 'sliding', but must be a list of"),
        ({"load_format": "dumy"}, "load_format is 'dumy', but must be one of auto, dummy, "),
        ({"hf_token": b"secret"}, "hf_token is of type bytes, but must be a text."),
        ({"dtype": torch.float64}, "dtype is 'float64', but must be one of auto, bfloat16, "),
        ({"pooler_config": {"a": 1}}, "pooler_config={'a': 1} is not possible: Facet generates text and nothing else."),
        ({"data_parallel_size": 2}, "data_parallel_size=2 is not possible: an LLM is one replica; facet serve -dp "),
        ({"spec_model": "a"}, "spec_model='a' is not possible: drafts are set with speculative_config."),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode='raw_logits' is not possible: "),
        ({"max_modellen": None}, "LLM has no setting 'max_modellen'. Did you mean 'max_model_len'?"),
    ],
)
def test_settings_of_another_type(settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("facet.offline.llm.LocalEngine", lambda *_: pytest.fail("an engine was made"))
    with pytest.raises(ConfigError) as caught:
        LLM(**{"model": "owner/name", **settings})
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model", Path("/a/model"), "/a/model"),
        ("max_model_len", np.int64(8192), 8192),
        ("max_model_len", "auto", "auto"),
        ("gpu_memory_utilization", np.float32(0.5), 0.5),
        ("gpu_memory_utilization", 1, 1.0),
        ("cudagraph_capture_sizes", [1, np.int32(2)], (1, 2)),
        ("allowed_media_domains", ["a.example"], ("a.example",)),
        ("speculative_config", {"method": "suffix"}, {"method": "suffix"}),
        ("quantization", "int8", "int8"),
        ("enable_prefix_caching", False, False),
    ],
)
def test_settings_of_other_libraries_types(name: str, value: object, expected: object) -> None:
    found = checked(name, value)
    assert (found, type(found)) == (expected, type(expected))


def test_none_is_the_default(caplog: pytest.LogCaptureFixture) -> None:
    names = {field.name for field in fields(ServerConfig)} - {"model"} | IDLE_SETTINGS.keys() | {"pooler_config"}
    with caplog.at_level("INFO", "facet"):
        assert read_settings("a", dict.fromkeys(names)) == read_settings("a", {})
    assert not caplog.records


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"dtype": torch.bfloat16}, {"dtype": "bfloat16"}),
        ({"dtype": torch.half}, {"dtype": "float16"}),
        ({"hf_token": True}, {}),
        ({"max_model_len": -1}, {"max_model_len": "auto"}),
        ({"max_logprobs": 100, "logprobs_mode": "raw_logprobs"}, {}),
        ({"data_parallel_size": 1, "offload_params": set(), "offload_group_size": 0, "served_model_name": "a"}, {}),
    ],
)
def test_settings_as_vllms_programs_write_them(given: dict[str, Any], ours: dict[str, Any]) -> None:
    assert read_settings("a", given) == read_settings("a", ours)
