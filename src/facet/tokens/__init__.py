"""The tokens room: text <-> token ids, in both directions.

It knows what a character, a token and a stop string are. It knows no messages (that is chat) and no steps
(that is engine).
"""

from facet.tokens.detokenizer import Detokenizer
from facet.tokens.stop_strings import StopScan, StopStringFinder, StopStrings
from facet.tokens.tokenizer import Tokenizer

__all__ = ["Detokenizer", "StopScan", "StopStringFinder", "StopStrings", "Tokenizer"]
