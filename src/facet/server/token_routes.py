"""/tokenize, /detokenize and /v1/models: questions about the model that do not run it."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from facet.errors import RequestError
from facet.prompts.preparing import render_messages
from facet.server.body import BodyDecoder
from facet.server.frontend import Frontend, json_response
from facet.server.protocol.tokenizing import (
    DetokenizeRequest,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from facet.tokens.prompt_text import PromptText

# What may be counted though it fits in no prompt: texts of several contexts, to be cut by whoever asks.
TOKENIZED_CONTEXTS = 8


class TokenizeEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(TokenizeRequest)

    async def __call__(self, request: Request) -> Response:
        fields: TokenizeRequest
        async with self._frontend.reading(request, self._decoder) as fields:
            self._frontend.model.check_name(fields.model)
            return json_response(await self._frontend.in_thread(partial(self._tokenize, fields)))

    def _tokenize(self, fields: TokenizeRequest) -> TokenizeResponse:
        model = self._frontend.model
        tokenizer = model.asked.require_tokenizer()
        if (fields.prompt is None) == (fields.messages is None):
            raise RequestError("Send either prompt or messages.", field="prompt")
        adds_special_tokens = fields.messages is None
        if fields.add_special_tokens is not None:
            adds_special_tokens = fields.add_special_tokens
        if fields.messages is not None:
            prompt = render_messages(
                model.asked,
                fields.messages,
                tools=fields.tools,
                add_generation_prompt=fields.add_generation_prompt,
                chat_template_kwargs=fields.chat_template_kwargs,
                num_contexts=TOKENIZED_CONTEXTS,
            )
        elif fields.split_special_tokens:
            prompt = PromptText.from_outside(fields.prompt or "")
        else:
            prompt = PromptText(fields.prompt or "")
        model.asked.text_limit(num_contexts=TOKENIZED_CONTEXTS).check(prompt.text)
        ids = tokenizer.encode_prompt(prompt, add_special_tokens=adds_special_tokens)
        strings = [tokenizer.id_to_token(token_id) or "" for token_id in ids] if fields.return_token_strs else None
        return TokenizeResponse(len(ids), model.max_model_len, ids, strings)


class DetokenizeEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(DetokenizeRequest)

    async def __call__(self, request: Request) -> Response:
        fields: DetokenizeRequest
        async with self._frontend.reading(request, self._decoder) as fields:
            model = self._frontend.model
            model.check_name(fields.model)
            outside = next((token_id for token_id in fields.tokens if not 0 <= token_id < model.vocab_size), None)
            if outside is not None:
                raise RequestError(
                    f"tokens holds {outside}, but this model's ids run from 0 to {model.vocab_size - 1}.",
                    field="tokens",
                )
            decode = partial(model.asked.require_tokenizer().decode, fields.tokens, skip_special_tokens=False)
            return json_response(DetokenizeResponse(await self._frontend.in_thread(decode)))


class ModelsEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def __call__(self, request: Request) -> Response:
        """The list, or with a name in the path the one card."""
        model = self._frontend.model
        asked = request.path_params.get("name")
        model.check_name(asked)
        cards = [
            ModelCard(name, model.created, model.root, model.max_model_len)
            for name in model.names
            if asked in (None, name)
        ]
        return json_response(cards[0] if asked is not None else ModelList(cards))
