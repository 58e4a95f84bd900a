"""Sends a turn and returns its outcome. A failed request is an outcome too, never an exception."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from facet.bench.answers import AnswerReader, error_message
from facet.bench.backends import Backend, ChatBackend, CompletionsBackend, Said
from facet.bench.config import MADE_UP_TEXT, BenchConfig
from facet.bench.dialogue import Turn
from facet.bench.http_client import ExchangeError, HttpClient, Response
from facet.bench.outcome import Failure, Outcome
from facet.errors import ConfigError
from facet.http.server_url import ServerUrl


class BenchClient:
    """One server, one model, one kind of request."""

    def __init__(self, config: BenchConfig) -> None:
        self.url = ServerUrl.parse(config.base_url or str(ServerUrl(False, config.host, config.port, "")))
        self.http = HttpClient(self.url, _headers(config), is_insecure=config.insecure)
        self.backend: Backend = ChatBackend() if config.is_chat else CompletionsBackend()
        self.path = self.url.target(config.endpoint or self.backend.endpoint)
        self.model = config.served_model_name or config.model
        self._timeout = config.request_timeout
        self._fields = _common_fields(config)
        self._encoder = msgspec.json.Encoder()

    async def send(self, past: Sequence[Said], turn: Turn, arrival: float) -> tuple[Outcome, AnswerReader]:
        body = self.body_of(past, turn)
        reader = self.backend.reader()
        failure = None
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout):
                response = await self.http.post(self.path, body, reader.on_body)
            if response.status == 200:
                reader.end(time.perf_counter())
            else:
                failure = Failure(kind=f"HTTP {response.status}", message=message_of(response))
        except ExchangeError as error:
            failure = Failure(kind=error.kind, message=str(error))
        except TimeoutError:
            failure = Failure(kind="timed out", message=f"no whole answer within {self._timeout:g} seconds")
        known = sum((said.turn.num_tokens or 0) + said.num_tokens for said in past) + (turn.num_tokens or 0)
        return _outcome(reader, known, arrival=arrival, start=start, failure=failure), reader

    def body_of(self, past: Sequence[Said], turn: Turn) -> bytes:
        fields = {**self.backend.fields(past, turn), **turn.fields, **self._fields, "model": self.model}
        return self._encoder.encode({name: value for name, value in fields.items() if value is not None})

    def close(self) -> None:
        self.http.close()


def message_of(response: Response) -> str:
    """The message of an error response, on one line."""
    try:
        return error_message(msgspec.json.decode(response.body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(response.body.decode(errors="replace").split())[:200]


def _outcome(
    reader: AnswerReader, num_prompt_tokens: int, *, arrival: float, start: float, failure: Failure | None
) -> Outcome:
    """The outcome of a request. Counts are the server's if it gives them, else `num_prompt_tokens` and the number of
    chunks."""
    usage = reader.usage
    num_output_tokens, num_cached_tokens = len(reader.chunk_times), None
    has_usage = usage is not None and usage.completion_tokens is not None
    if usage is not None:
        num_prompt_tokens = num_prompt_tokens if usage.prompt_tokens is None else usage.prompt_tokens
        num_output_tokens = num_output_tokens if usage.completion_tokens is None else usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            num_cached_tokens = usage.prompt_tokens_details.cached_tokens
    return Outcome(
        arrival=arrival,
        start=start,
        chunk_times=np.array(reader.chunk_times),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens if failure is None else 0,
        num_cached_tokens=num_cached_tokens,
        has_usage=has_usage,
        text=reader.text,
        failure=failure,
    )


def _headers(config: BenchConfig) -> dict[str, str]:
    key = config.api_key or os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key.strip()}"} if key else {}
    headers |= {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in config.header)}
    for name, value in headers.items():
        if not f"{name}{value}".isascii() or not f"{name}{value}".isprintable():
            raise ConfigError(
                f"The header {name!r} contains a character that is not allowed in headers; see --header and --api-key."
            )
    return headers


def _common_fields(config: BenchConfig) -> Mapping[str, Any]:
    """The fields that all requests of a run share; --extra-body overrides them."""
    return {
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        # Made-up prompts ask for answers of a length; others for answers.
        "ignore_eos": True if config.ignore_eos or config.dataset_name in MADE_UP_TEXT else None,
        # A session goes on from the very tokens of its answers, where the server tells them.
        "return_token_ids": True if config.dataset_name == "sessions" and not config.is_chat else None,
        **(config.extra_body or {}),
    }
