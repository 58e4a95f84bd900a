"""Says so when a kernel is compiled after the start, which lets every running request wait.

`compile_kernels` should leave none to be compiled later. Whoever looks for the cause of a slow answer finds it in a
line; `--verbose` also names the kernels that were found compiled on disk and only had to be loaded.
"""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def report_late_kernels() -> None:
    """Reports late kernels from now on, in this process."""
    # Imported here: machines without a GPU need not have it.
    from triton import knobs

    knobs.compilation.listener = _report


def _report(*, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
    """Called by Triton for every kernel that it has not had in this process."""
    name, variant = getattr(src, "name", "a kernel"), f"{getattr(src, 'constants', {})}, {getattr(src, 'attrs', {})}"
    if cache_hit:
        logger.debug("Loaded a kernel after the start: %s (%s)", name, variant)
        return
    logger.warning("Compiled a kernel after the start: %s, %.1f s, while requests waited.", name, times.total / 1e6)
    logger.debug("It was made for %s", variant)
