"""Refuses media that a model, or the device it runs on, cannot attend to."""

from collections.abc import Sequence

from facet.errors import RequestError
from facet.media_span import MediaSpan
from facet.model.gemma import Gemma


def check_media(spans: Sequence[MediaSpan], model: Gemma) -> None:
    both_ways = next((span for span in spans if span.attends_both_ways), None)
    if both_ways is None:
        return
    name = f"The {both_ways.kind} at positions {both_ways.first} to {both_ways.end - 1} attends both ways"
    if not model.spec.bidirectional_image_layers:
        raise RequestError(
            f"{name}, but every layer of this model is causal. Send it with attends_both_ways = false.", field="media"
        )
    if model.placement.device.type == "cuda":
        raise RequestError(
            f"{name}, which the kernels for GPUs do not compute yet. Run this model with --device cpu.", field="media"
        )
