"""Imports xgrammar, in a process of Facet alone without `transformers`.

xgrammar asks that library for two classes, to recognize tokenizers, which Facet never hands to it. To import it takes
longer than all the rest.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from facet.large_imports import large_imports

_NAME = "transformers"


class _StandIn(ModuleType):
    """A module that has every class, and all are empty."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("_"):
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return type(name, (), {})


def do_without_transformers() -> None:
    """Keeps `transformers` out for as long as this process runs: nobody else in it may have a use for that library."""
    stand_in = _StandIn(_NAME)
    stand_in.__spec__ = ModuleSpec(_NAME, None)
    sys.modules.setdefault(_NAME, stand_in)


def import_xgrammar() -> None:
    with large_imports():
        try:
            import_module("xgrammar")
        except ImportError:
            if not isinstance(sys.modules.get(_NAME), _StandIn):
                raise
            # A version that asks for more gets it.
            del sys.modules[_NAME]
            import_module("xgrammar")
