"""Tiny models, built once per session."""

from collections.abc import Callable

import pytest

from tests.tiny_models import TinyModel, make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    made: dict[str, TinyModel] = {}

    def get(name: str) -> TinyModel:
        if name not in made:
            made[name] = make_tiny_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get
