"""Turns questions into requests for the engine, and the tokens that come back into answers, for both APIs.

`server` and `offline` both fill in a `TextQuestion` or a `ChatQuestion` and get requests back, so that a question means
the same in both. The room checks and renders messages, encodes them, fills in the model's defaults, adds the grammar
that constrains the answer, and reads the tokens that come back as text or as a reply. Knows no HTTP, and of the engine
only its messages.
"""

from facet.prompts.asked_model import AskedModel, make_asked_model
from facet.prompts.preparing import PreparedQuestion, prepare
from facet.prompts.prompt_files import PromptFiles, read_prompt_files
from facet.prompts.questions import ChatQuestion, Question, TextQuestion
from facet.prompts.reading import AnswerTokens, ReplyFormat, ReplyReader, TextReader

__all__ = [
    "AnswerTokens",
    "AskedModel",
    "ChatQuestion",
    "PreparedQuestion",
    "PromptFiles",
    "Question",
    "ReplyFormat",
    "ReplyReader",
    "TextQuestion",
    "TextReader",
    "make_asked_model",
    "prepare",
    "read_prompt_files",
]
