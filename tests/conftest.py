"""What every test shares: one torch thread, how hypothesis tries its examples, and tiny models made once."""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

# Read by torch when it is first imported. The tensors in tests are tiny: two threads that hand such work to each
# other took three times as long as one. Set the variable yourself to try another number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Read by Triton when it is first imported. Without a GPU its kernels run in its interpreter.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What is imported is no garbage; to look through it while tests are collected took a fourth of that time.
gc.disable()

# The same examples every time, so that a run says something about the change and not about the day. To look for new
# ones: HYPOTHESIS_PROFILE=explore make test
for profile, is_repeatable in (("facet", True), ("explore", False)):
    settings.register_profile(
        profile,
        derandomize=is_repeatable,
        deadline=None,  # no clock: machines are shared
        max_examples=60,
        # Fixtures here are immutable values, so using one for all examples is what we want.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "facet"))

# Begun first, longest first: a worker that began one of them last would be busy with it while the others are done.
LONGEST_FILES = (
    "test_readme.py",
    "engine/test_batch_invariance.py",
    "engine/test_alone_equals_together.py",
    "model/test_against_transformers.py",
    "engine/test_constrained.py",
    "engine/test_kv_dtypes.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


def pytest_collection_finish() -> None:
    """What was imported and collected is no garbage, and takes half a second to be looked through."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """A test draws the same numbers whichever tests ran before it in its process; others when exploring."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch.manual_seed(0 if settings().derandomize else torch.seed())


@pytest.fixture(autouse=True)
def same_products_everywhere() -> Iterator[None]:
    """On a processor without bfloat16 instructions, torch's first such product ends oneDNN for the whole process.

    Products in float32 then differ in their last bits from those of a process that has not met one.
    """
    yield
    if "torch" in sys.modules:
        sys.modules["torch"]._C._set_mkldnn_enabled(True)


@pytest.fixture(autouse=True)
def memory_for_all() -> Iterator[None]:
    """Processes that test on the same GPU leave each other what they no longer use: torch would keep it."""
    yield
    if "torch" in sys.modules and (torch := sys.modules["torch"]).cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


@pytest.fixture
def with_bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are chosen as on a processor that multiplies bfloat16, whatever this one does."""
    from facet.model import resolving

    monkeypatch.setattr(resolving, "multiplies_bfloat16", lambda device: True)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str], TinyModel]":
    """A tiny checkpoint by name, with its oracle."""
    # Imported here: tests that need no tensors must not wait for torch.
    from tests.tiny_models import make_tiny_model

    made: dict[str, TinyModel] = {}

    def get(name: str) -> "TinyModel":
        if name not in made:
            made[name] = make_tiny_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get
