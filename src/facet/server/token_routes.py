"""/tokenize, /detokenize and /v1/models: questions about the model that do not run it."""

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from facet.errors import RequestError
from facet.prepared_media import PreparedMedia
from facet.prompts.preparing import TOKENIZED_CONTEXTS, tokenize_chat
from facet.prompts.questions import ChatQuestion
from facet.sampling_params import SamplingParams
from facet.server.body import BodyDecoder
from facet.server.frontend import Frontend, json_response
from facet.server.protocol.chat import check_end
from facet.server.protocol.tokenizing import (
    DetokenizeRequest,
    DetokenizeResponse,
    MediaTokenCount,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
)
from facet.tokens.prompt_text import PromptText


class TokenizeEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(TokenizeRequest)

    async def __call__(self, request: Request) -> Response:
        fields: TokenizeRequest
        async with self._frontend.reading(request, self._decoder) as fields:
            self._frontend.model_named(fields.model)
            if (fields.prompt is None) == (fields.messages is None):
                raise RequestError("Send either prompt or messages.", field="prompt")
            if fields.prompt is not None:
                return json_response(await self._frontend.in_thread(partial(self._tokenize_prompt, fields)))
            question, asked = _question(fields), self._frontend.model.asked
            media = await self._frontend.media.read(question, asked)
            prompt = await self._frontend.in_thread(partial(tokenize_chat, question, asked, media))
            return json_response(self._response(fields, prompt.token_ids, media))

    def _response(
        self, fields: TokenizeRequest, ids: Sequence[int], media: Sequence[tuple[PreparedMedia, ...]] = ()
    ) -> TokenizeResponse:
        model = self._frontend.model
        strings = None
        if fields.return_token_strs:
            tokenizer = model.asked.require_tokenizer()
            strings = [tokenizer.id_to_token(token_id) or "" for token_id in ids]
        counts = [MediaTokenCount(item[0].kind, sum(each.num_tokens for each in item)) for item in media]
        return TokenizeResponse(len(ids), model.max_model_len, list(ids), strings, counts)

    def _tokenize_prompt(self, fields: TokenizeRequest) -> TokenizeResponse:
        asked, text = self._frontend.model.asked, fields.prompt or ""
        tokenizer = asked.require_tokenizer()
        asked.text_limit(num_contexts=TOKENIZED_CONTEXTS).check(text)
        splits = bool(fields.split_special_tokens)
        adds = asked.adds_special_tokens(text, wanted=fields.add_special_tokens, split_special_tokens=splits)
        prompt = PromptText.from_outside(text) if splits else PromptText(text)
        ids = tokenizer.encode_prompt(prompt, add_special_tokens=adds)
        return self._response(fields, ids)


def _question(fields: TokenizeRequest) -> ChatQuestion:
    """The question that chat completions would make of the messages."""
    check_end(continue_final_message=fields.continue_final_message, add_generation_prompt=fields.add_generation_prompt)
    return ChatQuestion(
        messages=fields.messages,
        sampling=SamplingParams(),
        tools=fields.tools,
        chat_template=fields.chat_template,
        chat_template_kwargs=fields.chat_template_kwargs,
        mm_processor_kwargs=fields.mm_processor_kwargs,
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        add_special_tokens=bool(fields.add_special_tokens),
    )


class DetokenizeEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(DetokenizeRequest)

    async def __call__(self, request: Request) -> Response:
        fields: DetokenizeRequest
        async with self._frontend.reading(request, self._decoder) as fields:
            model = self._frontend.model_named(fields.model)
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
        """Answers with the list, or with a name in the path with the one card."""
        asked = request.path_params.get("name")
        if asked is None:
            return json_response(ModelList([self._card(name) for name in self._frontend.model_names]))
        self._frontend.model_named(asked)
        return json_response(self._card(asked))

    def _card(self, name: str) -> ModelCard:
        """Adapters name the model as their parent, as in vLLM. Their root is the model's, too: vLLM gives the path of
        their files, which clients need not know."""
        model = self._frontend.model
        parent = None if name in model.names else model.name
        return ModelCard(name, model.created, model.root, model.max_model_len, parent=parent)
