"""The server room: JSON <-> requests. It knows HTTP and OpenAI's and vLLM's wire formats; nothing below it does."""
