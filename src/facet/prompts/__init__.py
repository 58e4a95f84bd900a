"""Questions -> requests: the one way from a prompt or a conversation to what the engine is sent.

Both doors, `server` and `offline`, fill in a `TextQuestion` or a `ChatQuestion` and get requests back, so that the same
question means the same whichever way it came. Checks and renders messages, encodes, fills in the model's defaults,
binds the answer to a grammar, and says how the reply is to be read. Knows no HTTP, no JSON body and no engine.
"""

from facet.prompts.asked_model import AskedModel, read_asked_model
from facet.prompts.preparing import PreparedQuestion, prepare
from facet.prompts.questions import ChatQuestion, Question, TextQuestion

__all__ = [
    "AskedModel",
    "ChatQuestion",
    "PreparedQuestion",
    "Question",
    "TextQuestion",
    "prepare",
    "read_asked_model",
]
