"""Refuses prompts that cannot fit before much work is done for them."""

from facet.errors import RequestError
from facet.prompts.asked_model import AskedModel


def check_length(text: str, model: AskedModel, *, num_contexts: int = 1) -> None:
    """Refuses a text that surely has more tokens than the context, or than so many of them."""
    limit = num_contexts * model.max_model_len
    if model.require_tokenizer().surely_exceeds(text, limit):
        contexts = f"{num_contexts} times the context of " if num_contexts > 1 else "the context of "
        raise RequestError(
            f"The prompt has {len(text):,} characters and therefore more than {limit} tokens, but only {contexts}"
            f"{model.max_model_len} is allowed. Shorten the prompt.",
            field="prompt",
        )
