"""The Python API: `LLM` and its results, with the classes that vLLM users know."""

from facet.chat.reply import Reply
from facet.offline.llm import LLM
from facet.offline.lora_request import LoRARequest
from facet.offline.outputs import CompletionOutput, Logprob, RequestOutput
from facet.offline.prompts import TextPrompt, TokensPrompt

__all__ = ["LLM", "CompletionOutput", "LoRARequest", "Logprob", "Reply", "RequestOutput", "TextPrompt", "TokensPrompt"]
