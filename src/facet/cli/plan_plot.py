"""Draws a memory plan: how many requests fit against their length. Loads matplotlib only if asked to draw."""

import importlib
from typing import TYPE_CHECKING, Any

from facet.engine.capacity import Capacity
from facet.errors import ConfigError

if TYPE_CHECKING:
    from facet.engine.memory_plan import MemoryPlan

_SHORTEST = 512


def curves(plan: "MemoryPlan") -> dict[str, list[tuple[int, int]]]:
    """(length, requests that fit) for each KV dtype; dtypes with the same numbers share a curve."""
    longest = plan.capacity.max_model_len
    lengths = [min(_SHORTEST, longest)]
    while lengths[-1] < longest:
        lengths.append(min(longest, lengths[-1] * 5 // 4))
    found: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for name, capacity in plan.capacities.items():
        if isinstance(capacity, Capacity):
            points = tuple((length, capacity.sequences(length).num_sequences) for length in lengths)
            found.setdefault(points, []).append(name)
    return {", ".join(names): list(points) for points, names in found.items()}


def draw(path: str, plan: "MemoryPlan") -> None:
    # By name: it is no dependency of Facet's, and may be missing where types are checked. Not pyplot, which looks for a
    # screen.
    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    panel = figure.subplots()
    for name, points in curves(plan).items():
        lengths, counts = zip(*points, strict=True)
        panel.step(lengths, counts, where="post", label=name)
    panel.set(
        yscale="symlog",
        xlabel="tokens of a request",
        ylabel="requests that fit at once",
        title=f"{plan.model}, {plan.capacity.num_bytes / 2**30:.2f} GiB of keys and values per GPU",
    )
    panel.set_xscale("log", base=2)
    panel.grid(True, alpha=0.3)
    panel.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The picture cannot be written to {path}: {error}.") from None
