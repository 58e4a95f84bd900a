"""Counts HTTP requests by their status, and times them, under the names that vLLM's server has for it.

The labels say the route of a request and never its path, so that clients cannot make new time series: paths that lead
nowhere are `none`. What is refused before it is a request (too late, too long, not HTTP) is not counted.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram

# Asked again and again by monitors and by the page. vLLM does not count them either.
_NOT_COUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/server_info", "/engine/live"})
_METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})
_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)  # vLLM's are the first three


class HttpMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "HTTP requests, by method, route and kind of status.",
            ("method", "status", "handler"),
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "Histogram: until the last byte of a response was sent.",
            ("method", "handler"),
            registry=registry,
            buckets=_SECONDS,
        )
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}  # to look labels up is slow

    def observe(self, method: str, handler: str, status: int, seconds: float) -> None:
        """`handler` is the path of a route, as it was declared."""
        if handler in _NOT_COUNTED:
            return
        key = (method if method in _METHODS else "OTHER", handler, status // 100)
        found = self._known.get(key)
        if found is None:
            of_method, _, hundreds = key
            found = self._known[key] = (
                self._requests.labels(method=of_method, status=f"{hundreds}xx", handler=handler),
                self._seconds.labels(method=of_method, handler=handler),
            )
        counter, histogram = found
        counter.inc()
        histogram.observe(seconds)
