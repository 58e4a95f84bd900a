"""Produces the text of one answer as its tokens arrive, up to the first stop string."""

from facet.sampling_params import SamplingParams
from facet.tokens.detokenizer import Detokenizer
from facet.tokens.stop_strings import StopStringFinder, StopStrings
from facet.tokens.tokenizer import Tokenizer


class OutputText:
    """Feed tokens, get text that is final. After `stop_string` is set the answer is over: feed nothing more."""

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams, *, num_tokens_before: int = 0) -> None:
        """`num_tokens_before` count towards min_tokens."""
        self.stop_string: str | None = None
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=sampling.skip_special_tokens)
        self._finder = StopStringFinder(StopStrings(sampling.stop)) if sampling.stop else None
        self._keeps_stop_string = sampling.include_stop_str_in_output
        self._num_before_stop = sampling.min_tokens - num_tokens_before

    def push(self, token_id: int) -> str:
        """The text that became certain with this token."""
        self._num_before_stop -= 1
        return self._scan(self._detokenizer.push(token_id))

    def add_text(self, text: str) -> str:
        """Text that was already decoded, as the rest of a token whose beginning belongs elsewhere."""
        token_ids = self._tokenizer.encode(text, add_special_tokens=False) if text else []
        return "".join(self.push(token_id) for token_id in token_ids if self.stop_string is None)

    def finish(self) -> str:
        """What was held back, now that no token follows."""
        text = self._scan(self._detokenizer.finish())
        return text + self._finder.finish() if self._finder is not None and self.stop_string is None else text

    def _scan(self, text: str) -> str:
        if self._finder is None or not text:
            return text
        if self._num_before_stop > 0:  # min_tokens: too early to stop, so nothing here can be a stop string
            return self._finder.finish() + text
        scan = self._finder.feed(text)
        self.stop_string = scan.stop_string
        if scan.stop_string is not None and self._keeps_stop_string:
            return scan.text + scan.stop_string
        return scan.text
