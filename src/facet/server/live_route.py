"""/engine/live: the data of the page's engine view, in one small response.

The page polls once a second instead of receiving a stream: a request can carry an API key, which a browser's event
stream cannot; it keeps no connection open that a stopping server would have to wait for; and a hidden page stops
asking. It sends counters instead of rates, so that the server has to remember nothing about its pages.
"""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from facet.engine.messages import LiveView
from facet.server.errors import HttpError
from facet.server.frontend import Frontend, json_response
from facet.server.protocol.live import LiveArena, LiveModel, LivePages, LiveRequests, LiveResponse, LiveWork
from facet.server.served_model import ServedModel
from facet.version import __version__


class LiveEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def __call__(self, request: Request) -> Response:
        view = await self._frontend.bridge.live_view()
        if view is None:
            raise HttpError(503, "The engine has not answered yet, because a step is taking long. Try again.")
        response = json_response(live_response(view, self._frontend.model, self._frontend.bridge.adapters))
        response.headers["cache-control"] = "no-store"
        return response


def live_response(view: LiveView, model: ServedModel, adapters: Sequence[str]) -> LiveResponse:
    stats, arena = view.stats, view.arena
    return LiveResponse(
        seconds=view.seconds,
        model=LiveModel(
            name=model.name,
            max_model_len=model.max_model_len,
            sampling_defaults=dict(model.asked.sampling_defaults),
            media=list(model.asked.media.kinds),
            version=__version__,
            adapters=list(adapters),
        ),
        requests=LiveRequests(stats.num_running, stats.num_waiting, stats.num_preemptions),
        work=LiveWork(
            num_steps=stats.num_steps,
            busy_seconds=view.busy_seconds,
            num_sampled_tokens=stats.num_sampled_tokens,
            num_computed_tokens=stats.num_computed_tokens,
            num_prompt_tokens=stats.num_prompt_tokens,
            num_prompt_tokens_hit=stats.num_prompt_tokens_hit,
            num_drafts=stats.drafts.num_drafts,
            num_accepted_drafts=stats.drafts.num_accepted,
        ),
        arena=LiveArena(
            num_pages=arena.num_pages,
            page_bytes=arena.page_bytes,
            pages_per_cell=arena.pages_per_cell,
            kinds=[LivePages(pages.kind, pages.num_pages, list(pages.cells)) for pages in arena.kinds],
        ),
    )
