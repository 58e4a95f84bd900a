"""OpenAI's Responses API: a translation to and from chat completions, and a store of what was answered."""
