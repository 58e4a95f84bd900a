"""Renders conversations as text for the model and parses its replies.

Knows roles, tools, templates, thoughts and calls; not HTTP (the room server) and not steps (the room engine).
"""

from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ReplyParser, ToolCallArguments, ToolCallStart
from facet.chat.formats import ends_in_thought
from facet.chat.messages import normalize_messages
from facet.chat.replies import make_reply_parser
from facet.chat.template import ChatTemplate
from facet.chat.tool_choice import ToolChoice, ToolUse, normalize_tools, template_variables

__all__ = [
    "ChatTemplate",
    "ContentDelta",
    "Delta",
    "ReasoningDelta",
    "ReplyParser",
    "ToolCallArguments",
    "ToolCallStart",
    "ToolChoice",
    "ToolUse",
    "ends_in_thought",
    "make_reply_parser",
    "normalize_messages",
    "normalize_tools",
    "template_variables",
]
