"""Splits data: URLs into what they say about their content and the content."""

import re

_ENDS_IN_BASE64 = re.compile(r"; *base64 *\Z", re.IGNORECASE)


def split_data_url(url: str) -> tuple[bool, str] | None:
    """Whether the content is in base64, and the content, in percent-encoding. None: there is no comma before it."""
    head, comma, body = url.partition(",")
    return (_ENDS_IN_BASE64.search(head) is not None, body) if comma else None
