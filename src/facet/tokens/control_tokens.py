"""Finds the control tokens of a vocabulary and their places in a text, and encodes text without them.

A control token opens or closes something (a turn, a call, a picture) or begins or ends a text. In a tokenizer.json they
are among the added tokens, together with others that are ordinary text: runs of newlines or spaces, HTML tags.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import tokenizers

from facet.marker_spelling import FUNCTION_MARKER
from facet.tokens.encoding import encode_texts

# How Gemma 4 and FunctionGemma write their markers, whatever a tokenizer.json calls special.
_MARKER = re.compile(rf"<\|\S*>|<\S*\|>|{FUNCTION_MARKER}")


class ControlTokens:
    """Immutable; threads may share it."""

    def __init__(self, backend: tokenizers.Tokenizer, named: Collection[str]) -> None:
        """`named` are the texts of tokens that have a role, such as <bos>."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        control = {
            token.content: token_id
            for token_id, token in added.items()
            if token.content.strip() and (token.special or token.content in named or _MARKER.fullmatch(token.content))
        }
        self.id_of: Mapping[str, int] = MappingProxyType(control)
        self.ids = frozenset(control.values())
        self._pattern = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or r"(?!)")
        self._without, self._renumbered = _without_control_tokens(backend, control)
        unknown = control.get(getattr(backend.model, "unk_token", None) or "")
        self._forbidden = self.ids - {unknown}  # a character no token stands for is <unk> in any text

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where control tokens are written in a text: start and end of each."""
        return [match.span() for match in self._pattern.finditer(text)]

    def encode_as_text(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, in which a control token's text is ordinary text."""
        found = encode_texts(self._without, texts)
        if self._renumbered:
            found = [[self._renumbered.get(token_id, token_id) for token_id in token_ids] for token_ids in found]
        for index, token_ids in enumerate(found):
            if not self._forbidden.isdisjoint(token_ids):
                # The vocabulary knows the text of a control token as a word of its own as well: spell it out.
                found[index] = [token_id for part in self.encode_as_text(list(texts[index])) for token_id in part]
        return found


def _without_control_tokens(
    backend: tokenizers.Tokenizer, control: Mapping[str, int]
) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """A tokenizer to which the control tokens are unknown, and the ids that are others in it.

    It shares the vocabulary and its merges with the first one.
    """
    without = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        without.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        without.pre_tokenizer = backend.pre_tokenizer
    others = {
        token_id: token
        for token_id, token in backend.get_added_tokens_decoder().items()
        if token.content not in control
    }
    without.add_tokens([others[token_id] for token_id in sorted(others)])
    ids = {without.token_to_id(token.content): token_id for token_id, token in others.items()}
    return without, {given: token_id for given, token_id in ids.items() if given is not None and given != token_id}
