"""Encodes what a runner is told of a step, so that one plan can drive runners in several processes.

An array travels as its bytes, with its shape if it has more than one dimension; its type is that of the field. Arrays
that were decoded are views of the message: they cannot be written to.
"""

from typing import Any

import msgspec
import numpy as np

from facet.adapter import AdapterSource
from facet.step import StepMasks, StepPlan


def encode_plan(plan: StepPlan) -> bytes:
    return _ENCODER.encode(plan)


def decode_plan(message: bytes) -> StepPlan:
    return _PLAN_DECODER.decode(message)


def encode_masks(masks: StepMasks | None) -> bytes:
    return _ENCODER.encode(masks)


def decode_masks(message: bytes) -> StepMasks | None:
    return _MASKS_DECODER.decode(message)


def encode_adapter(number: int, source: AdapterSource) -> bytes:
    """That an adapter is to be loaded."""
    return _OF_ADAPTERS + _ENCODER.encode((number, source))


def decode_adapter(message: bytes) -> tuple[int, AdapterSource] | None:
    """None: it is about something else."""
    return _ADAPTER_DECODER.decode(message[1:]) if message.startswith(_OF_ADAPTERS) else None


def _encode_array(array: Any) -> Any:
    assert isinstance(array, np.ndarray), f"a plan holds a {type(array).__name__}"
    return array.tobytes() if array.ndim == 1 else (array.shape, array.tobytes())


def _decode_array(array_type: Any, encoded: Any) -> Any:
    scalar_type = array_type.__args__[1].__args__[0]  # NDArray[scalar] is ndarray[shape, dtype[scalar]]
    if isinstance(encoded, bytes):
        return np.frombuffer(encoded, scalar_type)
    shape, data = encoded
    return np.frombuffer(data, scalar_type).reshape(shape)


_OF_ADAPTERS = b"\xc1"  # a byte that begins nothing in this encoding
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_PLAN_DECODER = msgspec.msgpack.Decoder(StepPlan, dec_hook=_decode_array)
_ADAPTER_DECODER = msgspec.msgpack.Decoder(tuple[int, AdapterSource])
_MASKS_DECODER: msgspec.msgpack.Decoder[StepMasks | None] = msgspec.msgpack.Decoder(
    StepMasks | None, dec_hook=_decode_array
)
