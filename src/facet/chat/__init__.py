"""Renders conversations as text for the model and parses its replies.

Knows roles, tools, templates, thoughts and calls; not HTTP (the room server) and not steps (the room engine).
"""

from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta
from facet.chat.messages import normalize_messages
from facet.chat.replies import make_reply_parser
from facet.chat.template import ChatTemplate
from facet.chat.tool_choice import normalize_tools, template_variables

__all__ = [
    "ChatTemplate",
    "ContentDelta",
    "Delta",
    "ReasoningDelta",
    "make_reply_parser",
    "normalize_messages",
    "normalize_tools",
    "template_variables",
]
