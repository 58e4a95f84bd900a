"""Ranks as threads of the test's own process, which talk to each other through gloo as processes do."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from torch import distributed as dist

from facet.layers.meeting import gloo
from facet.layers.rank_group import RankGroup
from facet.ranks import Rank

Result = TypeVar("Result")


def on_ranks(size: int, body: Callable[[RankGroup], Result], *, adds_in_order: bool = False) -> list[Result]:
    """What `body` returns on each rank, or the first error. A rank that waits in vain fails after a minute."""
    store = dist.HashStore()
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def run(rank: Rank) -> None:
        try:
            processes = gloo(dist.PrefixStore("ranks", store), rank, patience=timedelta(seconds=60))
            results[rank.index] = body(RankGroup(rank, processes, adds_in_order=adds_in_order))
        except BaseException as error:  # goes to the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=run, args=(Rank(index=index, size=size),)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(size)]
