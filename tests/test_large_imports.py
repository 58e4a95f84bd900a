"""No garbage is looked for during large imports, and it is afterwards, if it was before."""

import gc
import json

import pytest

from facet.large_imports import large_imports


def test_the_collector_is_off_meanwhile() -> None:
    assert gc.isenabled()
    with large_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_behind_an_error() -> None:
    with pytest.raises(ZeroDivisionError), large_imports():
        json.dumps(1 / 0)
    assert gc.isenabled()


def test_it_stays_off_where_it_was() -> None:
    gc.disable()
    try:
        with large_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
