"""How FunctionGemma spells its control tokens, none of which a tokenizer.json needs to call special.

Whoever tells control tokens from text by their spelling must know these, beside Gemma 4's, which have a bar.
"""

from typing import Final

FUNCTION_MARKER: Final = r"<(?:start|end)_function_(?:declaration|call|response)>|<escape>"
