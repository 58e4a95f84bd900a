"""Merges what replicas report of themselves: metrics by a label, the page's live view by sums."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from facet.server.protocol.live import LiveArena, LivePages, LiveRequests, LiveResponse, LiveWork

Counts = TypeVar("Counts", LiveRequests, LiveWork)

_SAMPLE = re.compile(rb"^(?P<name>[^\s{]+)(?:\{(?P<labels>.*)\})?(?P<rest> [^{}]*)$")
_ENGINE = re.compile(rb'(?:^|,)engine="[^"]*"')


def merge_metrics(texts: Mapping[str, bytes]) -> bytes:
    """One text of the metrics of several replicas. The label `engine` names the replica, as with vLLM's engines."""
    families: dict[bytes, tuple[list[bytes], list[bytes]]] = {}  # by name: what describes it, and its samples
    for replica, text in texts.items():
        described: tuple[list[bytes], list[bytes]] = ([], [])
        for line in text.splitlines():
            if line.startswith(b"# HELP ") or line.startswith(b"# TYPE "):
                described = families.setdefault(line.split(b" ", 3)[2], ([], []))
                if line not in described[0]:
                    described[0].append(line)
            elif sample := _SAMPLE.match(line):
                labels = _ENGINE.sub(b"", sample["labels"] or b"").strip(b",")
                labels = b",".join(filter(None, (labels, b'engine="%b"' % replica.encode())))
                described[1].append(b"%b{%b}%b" % (sample["name"], labels, sample["rest"]))
    return b"".join(line + b"\n" for about, samples in families.values() for line in (*about, *samples))


def merge_live_views(views: Sequence[LiveResponse]) -> LiveResponse:
    """Merges live views: the caches one behind the other, everything else added up."""
    first = views[0]
    names = list(dict.fromkeys(pages.kind for view in views for pages in view.arena.kinds))
    return LiveResponse(
        seconds=max(view.seconds for view in views),
        model=first.model,
        requests=_sum([view.requests for view in views]),
        work=_sum([view.work for view in views]),
        arena=LiveArena(
            num_pages=sum(view.arena.num_pages for view in views),
            page_bytes=first.arena.page_bytes,
            pages_per_cell=first.arena.pages_per_cell,
            kinds=[_pages(kind, views) for kind in names],
        ),
    )


def _pages(kind: str, views: Sequence[LiveResponse]) -> LivePages:
    """The pages of a kind. A replica without pages of that kind has empty cells."""
    num_pages, cells = 0, []
    for view in views:
        found = next((pages for pages in view.arena.kinds if pages.kind == kind), None)
        num_pages += found.num_pages if found else 0
        cells += found.cells if found else [0] * max((len(pages.cells) for pages in view.arena.kinds), default=0)
    return LivePages(kind, num_pages, cells)


def _sum(counts: Sequence[Counts]) -> Counts:
    """The sum of counts, field by field."""
    names = counts[0].__struct_fields__
    return type(counts[0])(*(sum(getattr(one, name) for one in counts) for name in names))
