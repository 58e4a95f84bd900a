"""Defines every exception that Facet raises on purpose.

FacetError
├── UserError                what a user can fix; a command prints it as one line and exits with 2
│   ├── ConfigError          a flag, or a field of config.json, is wrong or contradicts another
│   │   └── UnsupportedModelError   the architecture is not supported
│   ├── CheckpointError      files are missing, broken, or do not hold what the config promises
│   ├── CapacityError        the memory given cannot hold what was asked for
│   ├── DeviceError          a GPU, its driver or its compiler failed while starting
│   └── RequestError         one request is wrong; others are not affected
└── EngineError              a fault of our own: the request fails, with the reason
    ├── NonFiniteLogitsError    a row of logits held NaN or infinity and was stopped before it became text
    └── EngineDeadError         the engine process ended; every waiting caller gets this at once
"""


class FacetError(Exception):
    """Base of every error raised on purpose."""


class UserError(FacetError, ValueError):
    """Something the user can fix. The message says what happened, the limit, and what to do."""


class ConfigError(UserError):
    """A flag or a field of a model's config.json is wrong, or two of them contradict each other."""


class UnsupportedModelError(ConfigError):
    """The checkpoint's architecture is not supported."""


class CheckpointError(UserError):
    """The files of a checkpoint are missing, broken, or not what its config promises."""


class CapacityError(UserError):
    """The memory given cannot hold what was asked for; the message gives both numbers."""


class DeviceError(UserError):
    """A GPU, its driver or the kernel compiler failed while starting; the message holds its first words."""


class RequestError(UserError):
    """One request cannot be served as asked. `field` names the part of the request to change."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class EngineError(FacetError, RuntimeError):
    """A fault on our side while serving a request."""


class NonFiniteLogitsError(EngineError):
    """The model produced NaN or infinite logits for this request; no token was sampled from them."""


class EngineDeadError(EngineError):
    """The engine process ended; nothing can be served any more."""
