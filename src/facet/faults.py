"""Names why a row of logits gave no token."""

from enum import Enum


class Fault(Enum):
    NON_FINITE_LOGITS = "the model's logits held NaN or infinity, or no finite number at all"
    NOTHING_ALLOWED = "the request's own settings and grammar forbid every token at this position"
