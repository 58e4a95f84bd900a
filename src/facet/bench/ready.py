"""Checks, before anything is measured, that the server is up, has the model and accepts such requests."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from facet.bench.client import BenchClient, message_of
from facet.bench.config import DATASETS_FROM_FILES, BenchConfig
from facet.bench.dialogue import Conversation, Turn
from facet.bench.http_client import CannotConnectError, ExchangeError
from facet.errors import ConfigError, UserError

_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_FOR_MODELS = 30.0


class ServerUnavailableError(UserError):
    """The server cannot be reached, or does not take what the benchmark would send."""


class _ModelCard(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelCard] = []


@dataclass(frozen=True, slots=True)
class ServerInfo:
    model: str
    max_model_len: int | None  # None: the server does not say


async def find_model(client: BenchClient, config: BenchConfig) -> ServerInfo:
    """Waits for the server, up to the timeout, and asks for its models."""
    deadline = time.monotonic() + config.ready_check_timeout_sec
    while True:
        try:
            async with asyncio.timeout(_SECONDS_FOR_MODELS):
                response = await client.http.get(client.url.target("/v1/models"))
        except CannotConnectError as error:
            reason = str(error)
        except (ExchangeError, TimeoutError) as error:
            reason = str(error) or f"no answer within {_SECONDS_FOR_MODELS:g} seconds"
        else:
            if response.status != 503:  # which is what a server says while it loads
                break
            reason = message_of(response)
        if time.monotonic() >= deadline:
            raise ServerUnavailableError(
                f"No server answers at {client.url}: {reason}. Start it, check --base-url or --host and --port, or "
                "wait for it with --ready-check-timeout-sec."
            )
        await asyncio.sleep(_SECONDS_BETWEEN_TRIES)
    cards = _cards_in(response.body) if response.status == 200 else []
    wanted = config.served_model_name or config.model
    if wanted is None:
        if not cards:
            said = message_of(response).rstrip(".")
            raise ServerUnavailableError(
                f"{client.url}/v1/models answered {response.status} and names no model: {said}. Check the URL, or name "
                "the model with --model."
            )
        wanted = cards[0].id
    card = next((card for card in cards if card.id == wanted), None)
    return ServerInfo(wanted, card.max_model_len if card is not None else None)


async def try_one(client: BenchClient, turn: Turn) -> None:
    """Sends one short request of the same kind, so that a wrong URL or model gives one error instead of a thousand."""
    if isinstance(turn.content, np.ndarray):
        short = replace(turn, content=turn.content[:1], max_tokens=1)
    elif client.backend.endpoint.endswith("chat/completions"):
        short = replace(turn, content="Hi", max_tokens=1)
    else:
        short = replace(turn, content=str(turn.content)[:8] or "Hi", max_tokens=1)
    outcome, _ = await client.send((), short, time.perf_counter())
    # One token may be one without text; what matters is that the request was taken.
    failure = outcome.failure
    if failure is not None and failure.kind != "no tokens":
        hint = " (--vocab-size says how large random token ids may be.)" if "token id" in failure.message else ""
        url = f"{client.url.origin}{client.path}"
        raise ServerUnavailableError(f"A first request to {url} failed, {failure.kind}: {failure.message}{hint}")


def check_lengths(config: BenchConfig, conversations: Sequence[Conversation], info: ServerInfo) -> None:
    """Refuses generated prompts that the server would refuse. In a file some may be too long; those fail one by one."""
    if info.max_model_len is None or config.dataset_name in DATASETS_FROM_FILES:
        return
    longest = max(sum((turn.num_tokens or 0) + (turn.max_tokens or 0) for turn in turns) for turns in conversations)
    if longest > info.max_model_len:
        raise ConfigError(
            f"The longest conversation has {longest} tokens, prompt and answer, but the context of {info.model} is "
            f"{info.max_model_len}. Lower the lengths, or start the server with a larger --max-model-len."
        )


def _cards_in(body: bytes) -> list[_ModelCard]:
    try:
        return msgspec.json.decode(body, type=_ModelList).data
    except msgspec.MsgspecError:
        return []
