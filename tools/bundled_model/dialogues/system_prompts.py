"""Generates system prompts. They ask for nothing that the model does not do anyway."""

from tools.bundled_model.dialogues.words import Source

_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful assistant with access to tools.",
    "You are a careful assistant. Use the tools when they fit.",
    "Be brief.",
    "Answer in English.",
    "You are an assistant that calls tools.",
    "Use a tool if one fits. Otherwise answer in words.",
    "Be polite and brief.",
    "You help people with their daily work.",
    "You are Facet's assistant.",
)


def make_system_prompt(source: Source) -> str:
    """Often empty: no system prompt at all."""
    if source.chance(0.6):
        return ""
    if source.chance(0.8):
        return source.pick(_PROMPTS)
    return f"You are an assistant for a {source.word()} {source.word()}. {source.pick(_PROMPTS)}"
