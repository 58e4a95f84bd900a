"""Runs the engine in a process of its own.

The front process gives it two addresses. Messages come in on one socket and go out on the other, the first of them
`EngineInfo` or `Died`. While there is work the loop only checks for messages; without work it waits for one,
or for the end of the front process.
"""

import logging
import os
import signal
from collections.abc import Iterator

import msgspec
import zmq

from facet.config import EngineConfig
from facet.engine.engine import make_engine
from facet.engine.messages import Died, FromEngine, Shutdown, ToEngine
from facet.engine.service import EngineService, make_info
from facet.errors import UserError
from facet.progress import Bars, Silent

logger = logging.getLogger(__name__)

# Without work: how long to wait for a message before looking whether the front process is still there.
SECONDS_BETWEEN_LOOKS = 2


def run_engine_process(config: EngineConfig, inbox_address: str, outbox_address: str, show_progress: bool) -> None:
    """The engine process, from start to end."""
    # Ctrl-C and a service manager's stop reach the whole group; the front process drains first and then sends Shutdown.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outbox.setsockopt(zmq.LINGER, 2000)  # milliseconds for the last messages to be delivered
    inbox.connect(inbox_address)
    outbox.connect(outbox_address)
    encoder = msgspec.msgpack.Encoder()
    try:
        engine, folder = make_engine(config, Bars() if show_progress else Silent())
        service = EngineService(engine, make_info(engine, folder))
        outbox.send(encoder.encode([service.info]))
        _loop(service, inbox, outbox, encoder)
    except UserError as error:
        outbox.send(encoder.encode([Died(str(error), is_users_to_fix=True)]))
    except Exception as error:
        logger.exception("The engine failed")
        outbox.send(encoder.encode([Died(f"{type(error).__name__}: {error}")]))
        raise SystemExit(1) from error
    finally:
        inbox.close()
        outbox.close()
        context.term()


def _loop(
    service: EngineService, inbox: "zmq.Socket[bytes]", outbox: "zmq.Socket[bytes]", encoder: msgspec.msgpack.Encoder
) -> None:
    decoder = msgspec.msgpack.Decoder(ToEngine)
    front = os.getppid()
    while True:
        if not service.has_work and not inbox.poll(SECONDS_BETWEEN_LOOKS * 1000) and os.getppid() != front:
            return  # the front process is gone: end, and free the memory
        outgoing: list[FromEngine] = []
        for message in _messages(inbox, decoder):
            if isinstance(message, Shutdown):
                return
            service.handle(message, outgoing.append)
        if service.has_work:
            outgoing += service.step()
        if outgoing:
            outbox.send(encoder.encode(outgoing))


def _messages(inbox: "zmq.Socket[bytes]", decoder: "msgspec.msgpack.Decoder[ToEngine]") -> Iterator[ToEngine]:
    """Everything that has come."""
    while True:
        try:
            yield decoder.decode(inbox.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
