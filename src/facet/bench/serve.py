"""`facet bench serve`: one run against a server, from the config to the exit code."""

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from facet.bench.arrivals import arrival_times
from facet.bench.client import BenchClient
from facet.bench.config import BenchConfig, check_config
from facet.bench.datasets import make_dataset
from facet.bench.dialogue import Conversation
from facet.bench.draft_rates import ask_draft_counts, counted_between
from facet.bench.load import run_load
from facet.bench.metrics import compute_metrics
from facet.bench.outcome import Outcome
from facet.bench.plot import check_plot, draw, series_of
from facet.bench.ready import ServerInfo, check_lengths, find_model, try_one
from facet.bench.result_file import check_result_file, make_result, result_path, write_result
from facet.bench.table import failure_lines, result_lines
from facet.draft_counts import DraftCounts
from facet.progress import Bars, Progress, Silent

if TYPE_CHECKING:  # token ids need no tokenizer, nor the library beneath it
    from facet.tokens import Tokenizer

EXIT_SOME_FAILED = 1


def bench_serve(config: BenchConfig, tokenizer: "Tokenizer | None" = None) -> int:
    """The exit code: 0, or 1 where a request failed or an entry of a dataset could not be sent.

    What keeps the run from starting is raised.
    """
    check_config(config)
    check_plot(config.plot)
    check_result_file(config)
    _allow_many_connections()
    dataset = make_dataset(config, tokenizer)
    for line in (*dataset.remarks, *dataset.complaints):
        print(line, file=sys.stderr)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        measured = runner.run(measure(config, dataset.conversations))
    info, outcomes, duration = measured.info, measured.outcomes, measured.duration
    metrics = compute_metrics(outcomes, duration, percentiles=config.percentiles, goodput_limits=config.goodput_limits)
    # Files first: a terminal that goes away must not cost the result. Nor must files that cannot be written.
    try:
        if config.save_result:
            path = result_path(config, info.model, datetime.now())
            write_result(path, make_result(config, info.model, metrics, outcomes, measured.drafts))
            print(f"Result: {path}", file=sys.stderr)
        if config.plot is not None:
            draw(config.plot, f"{config.label or config.backend}: {info.model}", series_of(outcomes))
    finally:
        for line in failure_lines(outcomes):
            print(line, file=sys.stderr)
        print("\n".join(result_lines(config, metrics, num_unusable=len(dataset.complaints), drafts=measured.drafts)))
    return EXIT_SOME_FAILED if metrics.num_failed or dataset.complaints else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    info: ServerInfo
    outcomes: list[Outcome]
    duration: float  # seconds from the first request to the end of the last
    drafts: DraftCounts  # what the server drafted meanwhile


async def measure(config: BenchConfig, conversations: Sequence[Conversation]) -> Measured:
    client = BenchClient(config)
    with contextlib.closing(client):
        info = await find_model(client, config)
        client.model = info.model
        check_lengths(config, conversations, info)
        await try_one(client, conversations[0][0])
        bars: Progress = Silent() if config.disable_tqdm else Bars()
        first = conversations[0][:1]
        if config.num_warmups:
            with bars.task("warm-up", config.num_warmups) as advance:
                copies = [first] * config.num_warmups
                await run_load(client, copies, [0.0] * len(copies), config.max_concurrency, advance)
        arrivals = arrival_times(config, len(conversations))
        before = await ask_draft_counts(client)
        with bars.task("requests", sum(map(len, conversations))) as advance, _quiet_collector():
            start = time.perf_counter()
            outcomes = await run_load(client, conversations, arrivals, config.max_concurrency, advance)
            duration = time.perf_counter() - start
        drafts = counted_between(before, await ask_draft_counts(client))
    return Measured(info=info, outcomes=outcomes, duration=duration, drafts=drafts)


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """Keeps the garbage collector off existing objects during the run: its pauses would look like the server's."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop if it is installed: it handles several times as many chunks per second."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _allow_many_connections() -> None:
    """A run without --max-concurrency opens a connection for each request; the usual limit is 1024 files."""
    try:
        import resource
    except ImportError:  # not on this system, which then has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # some systems refuse their own limit: connections may fail then
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
