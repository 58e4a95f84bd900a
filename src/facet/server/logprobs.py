"""Formats log-probabilities for the two endpoints, and vLLM's for prompts."""

import math
from collections.abc import Sequence

from facet.server.protocol.chat import ContentLogprob, TopLogprob
from facet.server.protocol.completions import CompletionLogprobs
from facet.server.protocol.shared import PositionLogprob
from facet.token_logprobs import TokenLogprobs
from facet.tokens import Tokenizer

# JSON has no minus infinity; the number vLLM writes for it.
_LOWEST = -9999.0


class LogprobShapes:
    """Shapes for one request. `as_token_ids` names tokens "token_id:17", for clients that need them exactly."""

    def __init__(self, tokenizer: Tokenizer | None, *, as_token_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_token_ids = as_token_ids or tokenizer is None

    def content(self, entry: TokenLogprobs) -> ContentLogprob:
        """Chat's: the sampled token, then the best or the named ones in order."""
        best = [
            TopLogprob(self.text(token_id), finite(logprob), self._bytes(token_id))
            for token_id, logprob in zip(entry.token_ids[1:], entry.logprobs[1:], strict=True)
        ]
        token_id = entry.token_ids[0]
        return ContentLogprob(self.text(token_id), finite(entry.logprobs[0]), self._bytes(token_id), best)

    def completion(
        self, entries: Sequence[TokenLogprobs | int], offsets: Sequence[int], *, num_others: int
    ) -> CompletionLogprobs:
        """Completions': parallel lists. An entry that is an id is a token nothing predicted."""
        logprobs = CompletionLogprobs([], [], [], [])
        for entry, offset in zip(entries, offsets, strict=True):
            logprobs.text_offset.append(offset)
            if isinstance(entry, int):
                logprobs.tokens.append(self.text(entry))
                logprobs.token_logprobs.append(None)
                logprobs.top_logprobs.append(None)
                continue
            logprobs.tokens.append(self.text(entry.token_ids[0]))
            logprobs.token_logprobs.append(finite(entry.logprobs[0]))
            # The best or the named ones, and the token itself where it is not among them.
            places = [*range(1, len(entry.token_ids)), 0] if num_others else [0]
            top: dict[str, float] = {}
            for place in places:
                top.setdefault(self.text(entry.token_ids[place]), finite(entry.logprobs[place]))
            logprobs.top_logprobs.append(top)
        return logprobs

    def prompt_position(self, entry: TokenLogprobs) -> dict[str, PositionLogprob]:
        """vLLM's `prompt_logprobs` of one position, by token id; the token itself first."""
        position: dict[str, PositionLogprob] = {}
        for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True):
            text = None if self._tokenizer is None else self._tokenizer.decode_continuation([token_id])
            position.setdefault(str(token_id), PositionLogprob(finite(logprob), rank, text))
        return position

    def text(self, token_id: int) -> str:
        if self._as_token_ids or self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.decode_continuation([token_id])

    def _bytes(self, token_id: int) -> list[int]:
        """A byte token is its byte, so that clients can put characters together again."""
        if self._tokenizer is None:
            return []
        spelling = self._tokenizer.id_to_token(token_id) or ""
        if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
            return [int(spelling[3:5], 16)]
        return list(self._tokenizer.decode_continuation([token_id]).encode())


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST
