"""Renders conversations with a chat template that came with a request, in a process of its own.

Such a template is a stranger's program. Jinja's sandbox keeps it from the rest of this one, but not from a loop without
end or from all of the memory. So each rendering gets a process with limits that the operating system enforces, none of
this one's environment, and nothing that outlives it. That costs some tenths of a second, which only those pay who send
a template.
"""

import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import msgspec

from facet.chat.template import ChatTemplate, Message
from facet.errors import EngineError, RequestError
from facet.tokens.prompt_text import PromptText
from facet.tokens.text_limit import TextLimit

MAX_SOURCE_CHARACTERS = 1 << 17  # ten times as long as Gemma's own
PROCESSOR_SECONDS = 2
MAX_SECONDS = 60  # with the start of the process, on a machine that has much else to do
MEMORY_BYTES = 1 << 30  # of addresses: libraries reserve some that they never use
MAX_PROMPT_CHARACTERS = 1 << 24  # where the tokenizer knows no limit

_FIELD = "chat_template"


class Job(NamedTuple):
    """What the process is asked for, in pickle: it trusts who started it."""

    source: str
    special_tokens: Mapping[str, str]
    conversation: Mapping[str, Any]
    max_characters: int


class Rendered(msgspec.Struct, frozen=True):
    """What the process answers: a prompt, or why there is none."""

    text: str = ""
    own_text: str | None = None
    refusal: str | None = None
    field: str | None = None


class RequestTemplate:
    """Renders as `ChatTemplate` does, with a template that nobody has seen before."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], *, processor_seconds: int = PROCESSOR_SECONDS
    ) -> None:
        """`processor_seconds` are those that a rendering may take, and up to one more."""
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise RequestError(
                f"chat_template has {len(source)} characters, but at most {MAX_SOURCE_CHARACTERS} are accepted. "
                "Shorten it.",
                field=_FIELD,
            )
        self._source, self._special_tokens = source, dict(special_tokens)
        self._processor_seconds = processor_seconds

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tools_as_json: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        limit: TextLimit | None = None,
    ) -> PromptText:
        conversation = {
            "messages": messages,
            "tools": tools,
            "tools_as_json": tools_as_json,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            "variables": variables,
        }
        most = None if limit is None else limit.max_characters
        job = Job(self._source, self._special_tokens, conversation, most or MAX_PROMPT_CHARACTERS)
        rendered = _in_a_process(pickle.dumps((self._processor_seconds, job)))
        if rendered.refusal is not None:
            raise RequestError(rendered.refusal, field=rendered.field)
        return PromptText(rendered.text, rendered.own_text)


def _in_a_process(job: bytes) -> Rendered:
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=job,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise RequestError(
            f"chat_template could not be rendered within {MAX_SECONDS} seconds. Simplify it, or try again later.",
            field=_FIELD,
        ) from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise RequestError(
            "chat_template takes more time of a processor to render than it may have. Simplify it.", field=_FIELD
        )
    if done.returncode < 0:
        raise RequestError("chat_template breaks the process that renders it. Simplify it.", field=_FIELD)
    if done.returncode:
        raise EngineError(f"The process that renders chat_template ended with the code {done.returncode}.")
    return msgspec.msgpack.decode(done.stdout, type=Rendered)


def render_job(job: Job) -> Rendered:
    """Renders a job; this is what the process does."""
    conversation = dict(job.conversation)
    try:
        # Without the control tokens every rendering is traced: this template may put its own markers together from
        # pieces, with text from outside between them.
        template = ChatTemplate(job.source, special_tokens=job.special_tokens, origin=_FIELD, called=_FIELD)
        prompt = template.render(conversation.pop("messages"), **conversation)
    except Exception as error:
        return _refusal(error)
    if len(prompt.text) > job.max_characters:
        return Rendered(
            refusal=f"chat_template renders {len(prompt.text)} characters, but the context has room for no more than "
            f"{job.max_characters}. Shorten the conversation or the template.",
            field=_FIELD,
        )
    return Rendered(prompt.text, prompt.own_text)


def _refusal(error: Exception) -> Rendered:
    cause = error.__cause__ or error
    if isinstance(cause, MemoryError):
        reason = f"chat_template needs more than {MEMORY_BYTES >> 20} MiB to render. Simplify it."
    elif isinstance(cause, jinja2.TemplateSyntaxError):
        reason = f"chat_template is not a valid template: {cause.message} (line {cause.lineno})."
    elif isinstance(error, RequestError):
        return Rendered(refusal=str(error), field=error.field)
    else:
        reason = f"chat_template fails ({type(error).__name__}: {error})."
    return Rendered(refusal=reason, field=_FIELD)


def main() -> None:
    processor_seconds, job = pickle.loads(sys.stdin.buffer.read())
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + processor_seconds
    for limit, value in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),  # a pipe is no file
    ):
        resource.setrlimit(limit, (value, value))
    answers.write(msgspec.msgpack.encode(render_job(job)))
    answers.flush()


if __name__ == "__main__":
    main()
