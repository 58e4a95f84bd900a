"""Converts text to token ids and token ids to text.

Knows characters, tokens and stop strings; not messages (the room chat) and not steps (the room engine).
"""

from facet.tokens.detokenizer import Detokenizer
from facet.tokens.stop_strings import StopStringFinder, StopStrings
from facet.tokens.tokenizer import Tokenizer

__all__ = ["Detokenizer", "StopStringFinder", "StopStrings", "Tokenizer"]
