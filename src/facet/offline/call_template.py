"""The chat template that a program gives for one call. It is the program's own, so it is rendered in this process."""

from dataclasses import replace

import jinja2

from facet.chat.template import ChatTemplate
from facet.errors import CheckpointError, RequestError
from facet.offline.given_values import shown
from facet.prompts import AskedModel

_FIELD = "chat_template"


def with_template(asked: AskedModel, source: object) -> AskedModel:
    """The model with this template in place of its own; None: its own."""
    if source is None:
        return asked
    if not isinstance(source, str):
        raise RequestError(f"{_FIELD} is {shown(source)}, but must be the text of a template.", field=_FIELD)
    if not any(mark in source for mark in "{}\n"):  # a template has some of these, and a path hardly any
        raise RequestError(
            f"{_FIELD} is {shown(source)}, but must be the text of a template. Give what pathlib.Path(...).read_text() "
            "returns, or the file to LLM(chat_template=...).",
            field=_FIELD,
        )
    tokenizer = asked.require_tokenizer()
    try:
        template = ChatTemplate(
            source,
            special_tokens=tokenizer.special_tokens,
            control_texts=tokenizer.control_tokens.id_of,
            origin=_FIELD,
            called=_FIELD,
        )
    except CheckpointError as error:
        cause = error.__cause__
        assert isinstance(cause, jinja2.TemplateSyntaxError), "nothing else can be wrong with one template"
        raise RequestError(
            f"{_FIELD} is not a valid template: {cause.message} (line {cause.lineno}).", field=_FIELD
        ) from None
    return replace(asked, template=template)
