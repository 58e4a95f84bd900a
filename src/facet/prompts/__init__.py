"""Questions -> requests, and tokens -> answers: the one path between those who ask and the engine.

Both APIs, `server` and `offline`, fill in a `TextQuestion` or a `ChatQuestion` and get requests back, so that the same
question means the same whichever way it came. The room checks and renders messages, encodes, fills in the model's
defaults, binds the answer to a grammar, and reads the tokens that come back as text or as a reply. It knows no HTTP,
and of the engine only its messages.
"""

from facet.prompts.asked_model import AskedModel, read_asked_model
from facet.prompts.preparing import PreparedQuestion, prepare
from facet.prompts.questions import ChatQuestion, Question, TextQuestion
from facet.prompts.reading import AnswerTokens, ReplyFormat, ReplyReader, TextReader

__all__ = [
    "AnswerTokens",
    "AskedModel",
    "ChatQuestion",
    "PreparedQuestion",
    "Question",
    "ReplyFormat",
    "ReplyReader",
    "TextQuestion",
    "TextReader",
    "prepare",
    "read_asked_model",
]
