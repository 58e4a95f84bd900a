"""Runs the engine in a process of its own, or in one for each rank.

All of them know a folder with sockets. The front process sends messages to rank 0, which plans; every rank may send
some back, the first of them `EngineInfo` or `Died`. While there is work the loop only checks for messages; without work
it waits for one, or for the end of the front process. Other ranks wait for the steps that rank 0 sends.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

import msgspec
import zmq

from facet.config import EngineConfig
from facet.engine.addresses import FROM_ENGINE, TO_ENGINE, address, steps_of
from facet.engine.engine import Engine
from facet.engine.loading import make_runner
from facet.engine.messages import Died, FromEngine, Shutdown, ToEngine
from facet.engine.ranks import LeadingRunner, follow
from facet.engine.service import EngineService, make_info
from facet.errors import EngineError, UserError
from facet.layers.rank_group import RankGroup, join_ranks
from facet.model.loader import resolve_device
from facet.progress import Bars, Progress, Silent
from facet.ranks import ALONE, Rank

logger = logging.getLogger(__name__)

# Without work: how long to wait for a message before looking whether the front process is still there.
SECONDS_BETWEEN_LOOKS = 2

_NO_MORE_STEPS = b""
_Send = Callable[[list[FromEngine]], None]


def run_engine_process(config: EngineConfig, rank: Rank, folder: Path, started: float, show_progress: bool) -> None:
    """The process of one rank, from start to end. `folder` has the sockets; `started` is for the `StartClock`."""
    # Ctrl-C and a service manager's stop reach the whole group; the front process drains first and then sends Shutdown.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    context = zmq.Context()
    outbox = context.socket(zmq.PUSH)
    outbox.setsockopt(zmq.LINGER, 2000)  # milliseconds for the last messages to be delivered
    outbox.connect(address(folder, FROM_ENGINE))
    encoder = msgspec.msgpack.Encoder()

    def send(messages: list[FromEngine]) -> None:
        outbox.send(encoder.encode(messages))

    progress = Bars() if show_progress and rank.plans else Silent()
    try:
        group = None
        if rank.size > 1:
            device = resolve_device(config.device, rank)
            group = join_ranks(rank, device, folder, adds_in_order=config.batch_invariant)
        if rank.plans:
            _lead(config, group, context, folder, started, progress, send)
        else:
            assert group is not None, "who follows is not alone"
            _follow(config, group, context, folder, progress)
    except UserError as error:
        send([Died(str(error), is_users_to_fix=True)])
    except EngineError as error:
        logger.error("%s", error)
        send([Died(str(error))])
        raise SystemExit(1) from None
    except Exception as error:
        logger.exception("The engine failed")
        send([Died(f"{type(error).__name__}: {error}")])
        raise SystemExit(1) from error
    finally:
        outbox.close()
        context.term()


def _lead(
    config: EngineConfig,
    group: RankGroup | None,
    context: "zmq.Context[zmq.Socket[bytes]]",
    folder: Path,
    started: float,
    progress: Progress,
    send: _Send,
) -> None:
    # The library for grammars takes seconds to import, and a thread that imports keeps the loop from launching kernels:
    # where steps are short it is loaded before there are any, as far as possible while weights are.
    importing = threading.Thread(target=import_module, args=("xgrammar",), daemon=True)
    if loads_grammars := resolve_device(config.device, ALONE if group is None else group.rank).type == "cuda":
        importing.start()
    ready = make_runner(config, progress, group, started=started)
    num_followers = 0 if group is None else group.rank.size - 1
    followers = [context.socket(zmq.PUSH) for _ in range(num_followers)]
    for index, socket in enumerate(followers, start=1):
        socket.setsockopt(zmq.LINGER, 2000)
        socket.bind(address(folder, steps_of(index)))

    def send_step(message: bytes) -> None:
        for socket in followers:
            socket.send(message)

    leading = LeadingRunner(ready.runner, send_step) if followers else ready.runner
    engine = Engine(leading, ready.settings, ready.folder, ready.drafter, ready.sleeper)
    if loads_grammars:
        engine.load_grammars(in_background=False)
    service = EngineService(engine, make_info(engine, str(ready.folder), ready.start_times))
    with closing(context.socket(zmq.PULL)) as inbox:
        inbox.connect(address(folder, TO_ENGINE))
        send([service.info])
        try:
            _loop(service, inbox, send)
        finally:
            for socket in followers:
                with suppress(zmq.Again):  # one that has ended takes no messages
                    socket.send(_NO_MORE_STEPS, zmq.NOBLOCK)
                socket.close()


def _follow(
    config: EngineConfig,
    group: RankGroup,
    context: "zmq.Context[zmq.Socket[bytes]]",
    folder: Path,
    progress: Progress,
) -> None:
    runner = make_runner(config, progress, group).runner
    front = os.getppid()
    with closing(context.socket(zmq.PULL)) as steps:
        steps.connect(address(folder, steps_of(group.rank.index)))

        def receive() -> bytes | None:
            while not steps.poll(SECONDS_BETWEEN_LOOKS * 1000):
                if os.getppid() != front:
                    return None  # the front process is gone, and rank 0 will notice too
            return steps.recv() or None

        follow(runner, receive)


def _loop(service: EngineService, inbox: "zmq.Socket[bytes]", send: _Send) -> None:
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
            send(outgoing)


def _messages(inbox: "zmq.Socket[bytes]", decoder: "msgspec.msgpack.Decoder[ToEngine]") -> Iterator[ToEngine]:
    """Everything that has come."""
    while True:
        try:
            yield decoder.decode(inbox.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
