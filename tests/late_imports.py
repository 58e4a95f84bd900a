"""Clients that take seconds to import. Every worker imports all files of tests, but only one runs each of them."""

import importlib
from typing import Any

from facet.large_imports import large_imports


class LateImport:
    """Stands for a module, which is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # pytest asks whether this is a test or a mock
        with large_imports():
            return getattr(importlib.import_module(self._name), attribute)
