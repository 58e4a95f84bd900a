"""Defines what is sent to a server: turns, and conversations made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Token ids; text, which a chat backend makes a user's message; or messages as they are sent.
TokenIds = npt.NDArray[np.int32]
Content = TokenIds | str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a user says next and how long the answer may be."""

    content: Content
    max_tokens: int | None  # None: the server decides
    num_tokens: int | None = None  # of `content`, where they are known beforehand
    fields: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request, such as tools


# Turns that follow one another: each is sent with all that was said before it.
Conversation = Sequence[Turn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    conversations: Sequence[Conversation]
    complaints: Sequence[str] = ()  # a line for each entry of a file that could not be used
    remarks: Sequence[str] = ()  # what a reader of the result should know
