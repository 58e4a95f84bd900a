"""Decodes one stretch of a reply's content, up to a stop string and without the format's white space."""

from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from facet.tokens.output_text import OutputText


class ContentText:
    """The content between two markers, or up to the end of the reply. A stop string never spans a marker."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: SamplingParams,
        *,
        num_tokens_before: int = 0,
        drops_newlines: bool = False,
    ) -> None:
        """`drops_newlines` at the start, as after a thought. `num_tokens_before` count towards min_tokens."""
        self._output = OutputText(tokenizer, sampling, num_tokens_before=num_tokens_before)
        self._drops_newlines = drops_newlines
        self.leading_space: str | None = ""  # held back until there is text; None from then on

    @property
    def stop_string(self) -> str | None:
        return self._output.stop_string

    def push(self, token_id: int) -> str:
        """The text that became certain with this token."""
        return self._trimmed(self._output.push(token_id))

    def add_text(self, text: str) -> str:
        """Text that was already decoded, as the rest of a token whose beginning belongs elsewhere."""
        return self._trimmed(self._output.add_text(text))

    def finish(self) -> str:
        """What was held back, except white space that stands alone: that is `leading_space`."""
        return self._trimmed(self._output.finish())

    def _trimmed(self, text: str) -> str:
        if self._drops_newlines:
            text = text.lstrip("\r\n")
            self._drops_newlines = not text
        if self.leading_space is None:
            return text
        text = self.leading_space + text
        if not text.strip():
            self.leading_space = text
            return ""
        self.leading_space = None
        return text
