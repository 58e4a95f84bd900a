"""Refuses texts that cannot fit the context before much work is done for them."""

from dataclasses import dataclass
from typing import NoReturn

from facet.errors import RequestError
from facet.tokens.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextLimit:
    tokenizer: Tokenizer
    max_model_len: int
    num_contexts: int = 1  # a text may fill several, where it is only to be counted

    @property
    def max_tokens(self) -> int:
        return self.num_contexts * self.max_model_len

    @property
    def max_characters(self) -> int | None:
        """The characters beyond which a text surely has too many tokens. None: it may have few, however long it is."""
        return self.tokenizer.max_characters(self.max_tokens)

    def check(self, text: str) -> None:
        """Refuses a text, of which this may be only a part, that surely has too many tokens."""
        if self.tokenizer.surely_exceeds(text, self.max_tokens):
            self._refuse(f"at least {len(text):,} characters", field="prompt")

    def check_count(self, num_items: int) -> None:
        """Refuses so many messages, parts of messages and tools: each takes a token, and more time than a character."""
        if num_items > self.max_tokens:
            self._refuse(f"{num_items:,} messages, parts of messages and tools", field="messages")

    def _refuse(self, size: str, *, field: str) -> NoReturn:
        allowed = f"; at most {self.num_contexts} times that is allowed" if self.num_contexts > 1 else ""
        # Clients know by the words "prompt is too long" and "maximum context length" that they have to send less.
        raise RequestError(
            f"The prompt is too long: it has {size} and therefore more than {self.max_tokens} tokens, but this model's "
            f"maximum context length is {self.max_model_len}{allowed}. Shorten the prompt.",
            field=field,
        )
