"""The part of Ollama's API that answers and describes a model. None of it pulls, changes or deletes one."""
