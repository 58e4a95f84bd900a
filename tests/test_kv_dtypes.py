"""Which layer stores its keys in what: what the flags mean, and what is refused, by name."""

from collections.abc import Sequence

import pytest

from facet.errors import ConfigError
from facet.kv_dtypes import KV_DTYPES, check_hardware, choose_kv_dtypes, parse_kv_cache_dtype
from facet.model.families import read_model_spec
from tests.published_configs import PUBLISHED

E4B = read_model_spec(PUBLISHED["Gemma 4 E4B"])  # five sliding layers and a global one, 24 of 42 with keys of their own


@pytest.mark.parametrize(
    ("text", "sliding", "global_"),
    [
        ("auto", "auto", "auto"),
        ("fp8", "fp8_e4m3", "fp8_e4m3"),
        *((name, name, name) for name in KV_DTYPES),
        ("global=fp8_per_token_head,sliding=bfloat16", "bfloat16", "fp8_per_token_head"),
        ("sliding=fp8, global=auto", "fp8_e4m3", "auto"),
        ("global=int8_per_token_head", "auto", "int8_per_token_head"),
    ],
)
def test_what_the_flag_means(text: str, sliding: str, global_: str) -> None:
    assert parse_kv_cache_dtype(text) == {"sliding": sliding, "global": global_}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fp3", r"'fp3' is not a KV dtype\. Known: auto, bfloat16, .*, int8_per_token_head, .*, fp8\."),
        ("", "'' is not a KV dtype"),
        ("FP8", "'FP8' is not"),
        ("global=fp3", "'fp3' is not a KV dtype"),
        ("middle=fp8", r"'middle' is not a kind of layer\. Kinds are sliding and global"),
        ("global=fp8,fp8", "'fp8' is not a kind of layer"),
        ("global=fp8,global=auto", "names global layers twice"),
    ],
)
def test_what_it_cannot_mean(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype {text}.*{words}"):
        parse_kv_cache_dtype(text)


def layers_stored_as(name: str, asked: str, skip: Sequence[str] = (), model_dtype: str = "bfloat16") -> list[int]:
    chosen = choose_kv_dtypes(E4B, asked=asked, skip_layers=skip, model_dtype=model_dtype)
    assert list(chosen) == list(range(24))
    return [layer for layer, dtype in chosen.items() if dtype == name]


def test_layers_get_what_their_kind_gets() -> None:
    assert layers_stored_as("float16", "auto", model_dtype="float16") == list(range(24))
    assert layers_stored_as("fp8_e4m3", "fp8") == list(range(24))
    assert layers_stored_as("fp8_e5m2", "global=fp8_e5m2") == [5, 11, 17, 23]
    assert layers_stored_as("bfloat16", "bfloat16", model_dtype="float32") == list(range(24))
    assert layers_stored_as("float32", "float32", model_dtype="float32") == list(range(24))


def test_skipped_layers_stay_as_the_model_computes() -> None:
    assert layers_stored_as("bfloat16", "fp8", ("0", "23")) == [0, 23]
    assert layers_stored_as("fp8_e4m3", "fp8", ("sliding",)) == [5, 11, 17, 23]
    assert layers_stored_as("fp8_e4m3", "fp8", ("sliding_window",)) == [5, 11, 17, 23]
    assert layers_stored_as("bfloat16", "fp8", ("global", "1")) == [1, 5, 11, 17, 23]
    assert layers_stored_as("bfloat16", "auto", ("0",)) == list(range(24))


@pytest.mark.parametrize(
    ("skip", "words"),
    [
        ("42", r"'42' is neither a layer of this model \(0 to 41\) nor a kind of layer \(sliding, global\)"),
        ("-1", "'-1' is neither"),
        ("²", "'²' is neither"),
        ("first", "'first' is neither"),
        ("41", r"layer 41 stores no keys, it reads those of layer 23\. Name that one"),
    ],
)
def test_layers_that_cannot_be_skipped(skip: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype-skip-layers: {words}"):
        choose_kv_dtypes(E4B, asked="fp8", skip_layers=("0", skip), model_dtype="bfloat16")


def test_float32_is_for_float32_models() -> None:
    with pytest.raises(ConfigError, match="the model computes in bfloat16"):
        choose_kv_dtypes(E4B, asked="global=float32", model_dtype="bfloat16")


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        ((7, 5), {"bfloat16", "fp8_e4m3", "fp8_per_token_head"}),
        ((8, 6), {"fp8_e4m3", "fp8_per_token_head"}),
        ((8, 9), set()),
        ((12, 0), set()),
        (None, set()),
    ],
)
def test_hardware_that_lacks_a_format(capability: tuple[int, int] | None, lacking: set[str]) -> None:
    for name in KV_DTYPES:
        if name not in lacking:
            check_hardware([name], device="X", capability=capability)
            continue
        with pytest.raises(ConfigError, match=rf"X has compute capability \d\.\d, but {name} needs 8\.") as caught:
            check_hardware(["float16", name], device="X", capability=capability)
        offered = str(caught.value).partition("work:")[2]
        assert {"auto", "fp8_e5m2", "int8_per_token_head"} <= {word.strip(" .") for word in offered.split(",")}
        assert name not in offered.replace(".", "").split(", ")
