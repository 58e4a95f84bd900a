"""/server_info and /tokenizer_info: how the server was set up, without anything that is secret or names a file."""

from dataclasses import fields
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from facet.config import ServerConfig
from facet.server.frontend import Frontend
from facet.version import __version__

# Settings that are free text and yet name nothing but a way of computing.
_PLAIN_TEXTS = frozenset({"kv_cache_dtype", "kv_cache_dtype_skip_layers", "cudagraph_capture_sizes", "device"})


class InfoEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def server(self, request: Request) -> Response:
        model, cache = self._frontend.model, self._frontend.bridge.info.cache
        return JSONResponse(
            {
                "version": __version__,
                "models": list(self._frontend.model_names),
                "max_model_len": model.max_model_len,
                "vocab_size": model.vocab_size,
                "reads": ["text", *model.asked.media.kinds],
                "kv_cache": {
                    "num_blocks": cache.num_blocks,
                    "block_bytes": cache.block_bytes,
                    "tokens_per_block": dict(cache.tokens_per_block),
                },
                "settings": open_settings(self._frontend.config),
            }
        )

    async def tokenizer(self, request: Request) -> Response:
        model = self._frontend.model
        tokenizer = model.asked.require_tokenizer()
        template = model.asked.template
        return JSONResponse(
            {
                "tokenizer_class": type(tokenizer).__name__,
                "vocab_size": model.vocab_size,
                "model_max_length": model.max_model_len,
                **tokenizer.special_tokens,
                "control_tokens": dict(tokenizer.control_tokens.id_of),
                "chat_template": None if template is None else template.source,
            }
        )


def open_settings(config: ServerConfig) -> dict[str, Any]:
    """The settings that anyone with a key may see: numbers, switches, and choices from a list.

    Free text may be a key, a token or a path, also in a setting that is yet to be invented, so it is left out.
    """
    return {
        field.name: value
        for field in fields(config)
        if isinstance(value := getattr(config, field.name), bool | int | float)
        or field.metadata.get("choices")
        or field.name in _PLAIN_TEXTS
    }
