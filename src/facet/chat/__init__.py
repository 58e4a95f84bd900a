"""The chat room: messages <-> text. It renders conversations and, in time, parses replies.

It knows roles, tools and templates. It knows no HTTP (that is server) and no steps (that is engine).
"""

from facet.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
