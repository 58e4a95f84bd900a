"""Runs the engine in a process of its own, or in one for each rank.

All of them know how to reach each other (`addresses.py`). The front process sends messages to rank 0, which plans;
every rank may send some back, the first of them `EngineInfo` or `Died`. While there is work the loop only checks for
messages; without work it waits for one. Other ranks wait for the steps that rank 0 sends. Whether the front process is
still there all look every few seconds, also while nobody takes what they send.
"""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import zmq

from facet.config import EngineConfig
from facet.engine.addresses import FrontAddresses, Network, Socket, steps_of
from facet.engine.engine import Engine
from facet.engine.loading import ReadyRunner, make_runner
from facet.engine.messages import Died, FromEngine, Shutdown, ToEngine
from facet.engine.ranks import LeadingRunner, follow
from facet.engine.service import EngineService, make_info
from facet.engine.start_times import StartClock
from facet.errors import EngineError, UserError
from facet.layers.meeting import file_store, join_ranks
from facet.layers.rank_group import RankGroup
from facet.model.batch_invariance import with_batch_invariance
from facet.model.resolving import resolve_device
from facet.progress import Bars, Silent
from facet.ranks import ALONE, Rank
from facet.runner.compile_process import CompileProcess
from facet.sampling.grammar_library import do_without_transformers, import_xgrammar

logger = logging.getLogger(__name__)

# How long until a process looks again whether the front process is still there.
SECONDS_BETWEEN_LOOKS = 2

_NO_MORE_STEPS = b""
_Send = Callable[[list[FromEngine]], None]
_Start = Callable[[], ReadyRunner]


def run_engine_process(
    config: EngineConfig,
    rank: Rank,
    network: Network,
    front: FrontAddresses,
    clock: StartClock,
    show_progress: bool,
    store: Any = None,
    compiling: CompileProcess | None = None,
) -> None:
    """The process of one rank, from start to end.

    `store`: where ranks meet; None: in the network's folder. `compiling`: see `begin_early`.
    """
    front_is_gone = _watch_front()
    # Ctrl-C and a service manager's stop reach the whole group; the front process drains first and then sends Shutdown.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    do_without_transformers()
    context = zmq.Context()
    outbox = context.socket(zmq.PUSH)
    outbox.setsockopt(zmq.LINGER, 2000)  # milliseconds for the last messages to be delivered
    network.connect(outbox, front.from_engine)
    encoder = msgspec.msgpack.Encoder()

    def send(messages: list[FromEngine]) -> None:
        message = encoder.encode(messages)
        try:
            outbox.send(message, zmq.NOBLOCK)
        except zmq.Again:  # a thousand have not been taken: the front process is slow, or gone
            while not outbox.poll(SECONDS_BETWEEN_LOOKS * 1000, zmq.POLLOUT):
                if front_is_gone():
                    raise SystemExit(1) from None
            outbox.send(message)

    progress = Bars() if show_progress and rank.plans else Silent()
    try:
        group = None
        if rank.size > 1:
            device = resolve_device(config.device, rank)
            config = with_batch_invariance(config, device)
            if store is None:
                assert network.folder is not None, "ranks on several machines meet elsewhere"
                store = file_store(network.folder, rank)
            group = join_ranks(
                rank,
                device,
                store,
                host=network.host,
                adds_in_order=bool(config.batch_invariant),
                shares_memory=network.folder is not None and not config.disable_custom_all_reduce,
            )
            clock.ends("ranks")
        start = partial(make_runner, config, progress, group, clock, compiling)
        if rank.plans:
            _lead(config, group, _Wires(context, network, store, front_is_gone), front.to_engine, start, clock, send)
        else:
            assert group is not None, "who follows is not alone"
            _follow(group, _Wires(context, network, store, front_is_gone), start)
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


@dataclass(frozen=True, slots=True)
class _Wires:
    """What a process needs to reach the others."""

    context: "zmq.Context[Socket]"
    network: Network
    store: Any
    front_is_gone: Callable[[], bool]


def _watch_front() -> Callable[[], bool]:
    """Whether the process that began this one has ended, though that may have been long before it is asked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        return lambda: not parent.is_alive()
    first = os.getppid()  # Ray's
    return lambda: os.getppid() != first


def _lead(
    config: EngineConfig,
    group: RankGroup | None,
    wires: _Wires,
    to_engine: str,
    start: _Start,
    clock: StartClock,
    send: _Send,
) -> None:
    # The library for grammars takes seconds to import, and a thread that imports keeps the loop from launching kernels:
    # where steps are short it is loaded before there are any, as far as possible while weights are.
    importing = threading.Thread(target=import_xgrammar, daemon=True)
    if loads_grammars := resolve_device(config.device, ALONE if group is None else group.rank).type == "cuda":
        importing.start()
    ready = start()
    num_followers = 0 if group is None else group.rank.size - 1
    followers = [wires.context.socket(zmq.PUSH) for _ in range(num_followers)]
    for index, socket in enumerate(followers, start=1):
        socket.setsockopt(zmq.LINGER, 2000)
        wires.store.set(steps_of(index), wires.network.listen(socket, steps_of(index)))

    def send_step(message: bytes) -> None:
        for socket in followers:
            socket.send(message)

    leading = LeadingRunner(ready.runner, send_step) if followers else ready.runner
    if isinstance(leading, LeadingRunner) and ready.adapters is not None:
        ready.adapters.lead(leading.tell_of_adapter)
    engine = Engine(leading, ready.settings, ready.folder, ready.drafter, ready.sleeper, ready.adapters)
    if loads_grammars:
        engine.load_grammars(in_background=False)
        clock.ends("grammars")
    service = EngineService(engine, make_info(engine, str(ready.folder), clock.times()))
    with closing(wires.context.socket(zmq.PULL)) as inbox:
        wires.network.connect(inbox, to_engine)
        send([service.info])
        try:
            _loop(service, inbox, send, wires.front_is_gone)
        finally:
            for socket in followers:
                with suppress(zmq.Again):  # one that has ended takes no messages
                    socket.send(_NO_MORE_STEPS, zmq.NOBLOCK)
                socket.close()


def _follow(group: RankGroup, wires: _Wires, start: _Start) -> None:
    ready = start()
    with closing(wires.context.socket(zmq.PULL)) as steps:
        wires.network.connect(steps, wires.store.get(steps_of(group.rank.index)).decode())

        def receive() -> bytes | None:
            while not steps.poll(SECONDS_BETWEEN_LOOKS * 1000):
                if wires.front_is_gone():
                    return None  # and rank 0 will notice too
            return steps.recv() or None

        follow(ready.runner, receive, ready.adapters)


def _loop(service: EngineService, inbox: Socket, send: _Send, front_is_gone: Callable[[], bool]) -> None:
    decoder = msgspec.msgpack.Decoder(ToEngine)
    next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
    while True:
        if not service.has_work:
            inbox.poll(SECONDS_BETWEEN_LOOKS * 1000)
        if time.monotonic() >= next_look:
            if front_is_gone():
                return  # end, and free the memory
            next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        outgoing: list[FromEngine] = []
        for message in _messages(inbox, decoder):
            if isinstance(message, Shutdown):
                return
            service.handle(message, outgoing.append)
        if service.has_work:
            outgoing += service.step()
        if outgoing:
            send(outgoing)


def _messages(inbox: Socket, decoder: "msgspec.msgpack.Decoder[ToEngine]") -> Iterator[ToEngine]:
    """All messages that have come."""
    while True:
        try:
            yield decoder.decode(inbox.recv(zmq.NOBLOCK))
        except zmq.Again:
            return
