"""/server_info and /tokenizer_info: what they say, and what neither they nor the log may say."""

import json
import logging
from dataclasses import fields
from pathlib import Path

import pytest

from facet.config import ServerConfig
from facet.server.info_routes import open_settings
from facet.version import __version__
from tests.server.conftest import TEMPLATE, Scripted

PATHS = ("/server_info", "/tokenizer_info")


def test_what_they_say(scripted: Scripted) -> None:
    with scripted("one", max_num_seqs=7, kv_cache_dtype="fp8") as (server, _):
        about, tokenizer = (server.get(path).json() for path in PATHS)
    assert (about["version"], about["models"], about["max_model_len"]) == (__version__, ["tiny"], 4096)
    assert about["settings"]["max_num_seqs"] == 7
    assert about["settings"]["kv_cache_dtype"] == "fp8"
    assert about["kv_cache"] == {
        "num_blocks": 10,
        "block_bytes": 1024,
        "tokens_per_block": {"sliding": 16, "global": 40},
    }
    assert (tokenizer["bos_token"], tokenizer["vocab_size"], tokenizer["chat_template"]) == ("<bos>", 480, TEMPLATE)
    assert tokenizer["control_tokens"]["<turn|>"] == 16


def test_both_need_the_key_and_hold_no_secret(
    scripted: Scripted, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    key = "sk-very-secret"
    secrets = {"ssl_keyfile": "/etc/private/key.pem", "allowed_local_media_path": str(tmp_path)}
    with (
        caplog.at_level(logging.DEBUG),
        scripted("one", api_key=(key,), revision="token-like", enable_log_requests=True, **secrets) as (server, _),
    ):
        assert [server.get(path).status_code for path in PATHS] == [401, 401]
        headers = {"authorization": f"Bearer {key}"}
        texts = [server.get(path, headers=headers).text for path in PATHS]
        asked = {"messages": [{"role": "user", "content": "one"}]}
        assert server.post("/v1/chat/completions", asked, headers=headers).status_code == 200
    for text in (*texts, caplog.text):
        for secret in (key, "token-like", *secrets.values()):
            assert secret not in text


def test_free_text_stays_inside_whatever_setting_holds_it() -> None:
    """Every setting that takes text, now or later, is given some: none of it comes out."""
    given = {field.name: "/a/path" for field in fields(ServerConfig) if isinstance(field.default, str | None.__class__)}
    shown = open_settings(ServerConfig(**{**given, "api_key": ("/a/path",)}))
    hidden = {name for name, value in shown.items() if "/a/path" in json.dumps(value)}
    by_choice = {field.name for field in fields(ServerConfig) if field.metadata["choices"]}
    assert hidden <= by_choice | {"kv_cache_dtype", "device"}
    assert shown["port"] == 8000
