"""Anthropic's Messages API: a translation to and from chat completions."""
