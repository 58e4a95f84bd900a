"""The URL of a server, as those who talk to one are given it."""

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from facet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """Where a server is; `path` comes before that of every endpoint."""

    is_tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> "ServerUrl":
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except ValueError as error:  # a port that is no number, a name that is none
            raise ConfigError(f"{url!r} is not a URL: {error}.") from None
        if parts.username is not None:
            raise ConfigError("A URL with a user name in it is not supported; send --header Authorization=... instead.")
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise ConfigError(f"{url!r} is not the URL of a server; give one such as http://127.0.0.1:8000.")
        is_tls = parts.scheme == "https"
        return cls(is_tls, host, port or (443 if is_tls else 80), parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def target(self, endpoint: str) -> str:
        """The path of a request. If both the URL and the endpoint contain /v1, it appears once."""
        endpoint = endpoint if endpoint.startswith("/") else f"/{endpoint}"
        path = self.path.removesuffix("/v1") if endpoint.startswith("/v1/") else self.path
        return quote(path + endpoint, safe="/%?&=:@!$'()*+,;~-._")

    @property
    def origin(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.authority}"

    def __str__(self) -> str:
        return self.origin + self.path
