"""An engine that computes nothing, behind the real messages: every running request gets a token in every step.

It shows what everything around an engine costs. Steps take no time, or as long as `STEP_SECONDS` in the environment
says.
"""

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec
import zmq

from facet.config import EngineConfig
from facet.engine.addresses import FrontAddresses, Network
from facet.engine.messages import AskStats, Cancel, EngineInfo, FromEngine, NewTokens, Shutdown, Stats, Submit, ToEngine
from facet.ranks import Rank
from facet.request import Request

TOKEN_ID = 280
STEP_SECONDS = "FACET_EMPTY_STEP_SECONDS"
_SECONDS_BETWEEN_LOOKS = 2
NOTHING_DONE = Stats(
    num_running=0,
    num_waiting=0,
    num_preemptions=0,
    num_steps=0,
    num_computed_tokens=0,
    num_sampled_tokens=0,
    num_corrupted_requests=0,
    num_blocks=0,
    num_blocks_in_tables=0,
    num_blocks_cached=0,
    num_prompt_tokens=0,
    num_prompt_tokens_hit=0,
)


class EmptySteps:
    """Takes the place of the engine's service."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._left: dict[str, tuple[Request, int]] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def handle(self, message: ToEngine, send: Callable[[FromEngine], None]) -> None:
        if isinstance(message, Submit):
            self._left[message.request.request_id] = (message.request, message.request.sampling.max_tokens or 1)
        elif isinstance(message, Cancel):
            self._left.pop(message.request_id, None)
        elif isinstance(message, AskStats):
            send(NOTHING_DONE)

    def step(self) -> list[FromEngine]:
        if self._step_seconds:
            time.sleep(self._step_seconds)
        messages: list[FromEngine] = []
        for request_id, (request, num_left) in list(self._left.items()):
            messages.append(NewTokens(request_id, (TOKEN_ID,), "length" if num_left == 1 else None))
            if num_left == 1:
                del self._left[request_id]
            else:
                self._left[request_id] = (request, num_left - 1)
        return messages


def run_empty_engine(rank: Rank, device: str, network: Network, task: Connection, started: float) -> None:
    """In place of `facet.engine.rank_processes.run_rank`: the process of an engine."""
    parent = os.getppid()
    config: EngineConfig
    front: FrontAddresses
    config, front, _ = task.recv()
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    network.connect(inbox, front.to_engine)
    network.connect(outbox, front.from_engine)
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(ToEngine)
    service = EmptySteps(float(os.environ.get(STEP_SECONDS, "0")))
    outbox.send(encoder.encode([EngineInfo(262_144, (1,), 8192, config.model, ())]))
    while True:
        if not service.has_work and not inbox.poll(_SECONDS_BETWEEN_LOOKS * 1000) and os.getppid() != parent:
            return
        outgoing: list[FromEngine] = []
        while inbox.poll(0):
            message = decoder.decode(inbox.recv())
            if isinstance(message, Shutdown):
                return
            service.handle(message, outgoing.append)
        if service.has_work:
            outgoing += service.step()
        if outgoing:
            outbox.send(encoder.encode(outgoing))
