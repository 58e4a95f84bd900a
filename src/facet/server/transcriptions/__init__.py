"""OpenAI's endpoints for speech: what is said in a sound, in its own language or translated."""
