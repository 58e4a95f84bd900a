"""The HTTP server. Knows HTTP and the wire formats of OpenAI and vLLM; nothing below it does."""
