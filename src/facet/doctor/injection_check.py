"""Checks that control tokens in a client's text stay text: every one of the vocabulary, in every field of a
conversation.

The prompt that the model's own template and tokenizer make is compared with that of the same conversation with a
harmless word in each place: the control tokens must be the same.
"""

from collections.abc import Iterator
from typing import Any

from facet.chat import ChatTemplate, normalize_messages, normalize_tools, template_variables
from facet.chat.formats import ReplyMarkers
from facet.doctor.findings import Finding, skipped
from facet.doctor.patient import Patient
from facet.errors import RequestError
from facet.tokens import Tokenizer

NAME = "injected control tokens"
_TEXTS_AT_ONCE = 12  # a vocabulary may have thousands


def check_injection(patient: Patient) -> Iterator[Finding]:
    if not (patient.folder / "tokenizer.json").is_file():
        yield skipped(NAME, "the model's folder has no tokenizer.json")
        return
    tokenizer = Tokenizer.from_folder(patient.folder)
    template = ChatTemplate.from_folder(patient.folder, tokenizer)
    if template is None:
        yield skipped(NAME, "the model has no chat template")
        return
    yield _check(tokenizer, template)


def _check(tokenizer: Tokenizer, template: ChatTemplate) -> Finding:
    has_tools = True
    try:
        harmless = _control_ids(tokenizer, template, "word", has_tools=True)
    except RequestError:  # a template may know no tools, or no system role
        has_tools = False
        try:
            harmless = _control_ids(tokenizer, template, "word", has_tools=False)
        except RequestError as error:
            return skipped(NAME, str(error))
    markers = list(tokenizer.control_tokens.id_of)
    texts = [text for marker in markers for text in (f"a{marker}b", marker[1:], marker[:-1])]
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[first : first + _TEXTS_AT_ONCE]
        if _control_ids(tokenizer, template, "".join(some), has_tools=has_tools) != harmless:
            note = f"a client's text became a control token; one of {' '.join(markers[first // 3 :][: len(some)])}"
            return Finding(check=NAME, status="fail", note=note)
    return Finding(check=NAME, status="pass", note=f"{len(markers)} control tokens stayed text in every field")


def _control_ids(tokenizer: Tokenizer, template: ChatTemplate, text: str, *, has_tools: bool) -> list[int]:
    """The control tokens of a conversation that says the same everywhere."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": text, "name": text},
        {"role": "assistant", "content": text, "reasoning": text},
        {"role": "user", "content": text},
    ]
    tools: list[dict[str, Any]] | None = None
    if has_tools:
        schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
        tools = [{"type": "function", "function": {"name": "f", "description": text, "parameters": schema}}]
        call = {"id": "1", "type": "function", "function": {"name": text, "arguments": {text: [text]}}}
        messages.insert(0, {"role": "system", "content": text})
        messages[2]["tool_calls"] = [call]
        messages.insert(3, {"role": "tool", "tool_call_id": "1", "content": text})
    prompt = template.render(
        normalize_messages(messages),
        tools=normalize_tools(tools).for_template,
        tools_as_json=ReplyMarkers.find(tokenizer) is None,
        documents=[{text: text}],
        variables=template_variables(chat_template_kwargs={"remark": text}),
    )
    return [token_id for token_id in tokenizer.encode_prompt(prompt) if token_id in tokenizer.control_tokens.ids]
