"""Holds requests while their grammars are compiled. They are not queued yet, and no queued request waits for them."""

from concurrent.futures import Future, wait
from typing import NamedTuple

from facet.errors import RequestError
from facet.request import Request
from facet.sampling import CompiledGrammar, GrammarCompiler, as_request_error


class Compiled(NamedTuple):
    request: Request
    grammar: CompiledGrammar | RequestError  # an error: why there is none


class CompilingRequests:
    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._requests: dict[str, tuple[Request, Future[CompiledGrammar]]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def requests(self) -> list[Request]:
        return [request for request, _ in self._requests.values()]

    def add(self, request: Request) -> None:
        """Starts compiling; `take_ready` returns the request. Raises at once if it is certain to fail."""
        assert request.grammar is not None, "only requests with a grammar come here"
        if request.grammar.trigger_token_id is None and not (request.eos_token_ids or request.sampling.stop_token_ids):
            raise RequestError(
                f"{request.grammar.field} constrains the whole answer, but the request has no end-of-sequence token "
                "that could end it. Give eos_token_ids or stop_token_ids.",
                field=request.grammar.field,
            )
        self._requests[request.request_id] = (request, self._compiler.start(request.grammar))

    def load(self, *, in_background: bool) -> None:
        if in_background:
            self._compiler.load_in_background()
        else:
            self._compiler.load()

    def cancel(self, request_id: str) -> bool:
        """Whether the request was here. Its grammar is compiled all the same, for later requests."""
        return self._requests.pop(request_id, None) is not None

    def take_ready(self, timeout: float) -> list[Compiled]:
        """Requests whose grammar is ready, in order; waits at most `timeout` seconds for a first one."""
        if not self._requests:
            return []
        if timeout:
            wait([compiling for _, compiling in self._requests.values()], timeout, return_when="FIRST_COMPLETED")
        ready = []
        for request_id, (request, compiling) in list(self._requests.items()):
            if compiling.done():
                del self._requests[request_id]
                assert request.grammar is not None
                error = compiling.exception()
                outcome = compiling.result() if error is None else as_request_error(error, request.grammar)
                ready.append(Compiled(request, outcome))
        return ready
