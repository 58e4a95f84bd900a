"""Runs the steps of one engine on several ranks: rank 0 plans, and sends the others what its own runner is told.

A plan, then the masks of its grammars, travel as the bytes that `step_codec.py` makes of them. Between steps comes what
else all ranks do: adapters to load. Nothing comes back: ranks that run the same steps keep the same books and sample
the same tokens.
"""

from collections.abc import Callable

from facet.adapter import AdapterSource
from facet.engine.adapters import Adapters
from facet.engine.step_codec import (
    decode_adapter,
    decode_masks,
    decode_plan,
    encode_adapter,
    encode_masks,
    encode_plan,
)
from facet.runner.runner import LaunchedStep, Runner
from facet.runner.step_sampling import SampledStep
from facet.step import StepMasks, StepPlan


class LeadingRunner:
    """Rank 0's `Runner`. `send` brings a message to every other rank."""

    def __init__(self, runner: Runner, send: Callable[[bytes], None]) -> None:
        self._runner = runner
        self._send = send
        self.model, self.media, self.counters = runner.model, runner.media, runner.counters

    def launch(self, plan: StepPlan) -> LaunchedStep:
        self._send(encode_plan(plan))  # first, so that all ranks begin together
        return self._runner.launch(plan)

    def sample(self, step: LaunchedStep, masks: StepMasks | None = None) -> SampledStep:
        self._send(encode_masks(masks))
        return self._runner.sample(step, masks)

    def tell_of_adapter(self, number: int, source: AdapterSource) -> None:
        """Lets the other ranks load an adapter; this one loads it, too."""
        self._send(encode_adapter(number, source))


def follow(runner: Runner, receive: Callable[[], bytes | None], adapters: Adapters | None = None) -> None:
    """Run every step that rank 0 sends, until `receive` says with None that there will be no more."""
    while (plan := receive()) is not None:
        told = decode_adapter(plan)
        if told is not None:
            assert adapters is not None, "all ranks have room for adapters, or none"
            adapters.load_as_told(*told, runner.model.spec)
            continue
        launched = runner.launch(decode_plan(plan))
        masks = receive()
        if masks is None:
            return
        runner.sample(launched, decode_masks(masks))
