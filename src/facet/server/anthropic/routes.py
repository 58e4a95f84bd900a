"""/v1/messages and /v1/messages/count_tokens."""

import secrets

from starlette.requests import Request
from starlette.responses import Response

from facet.server.anthropic.answers import MessageExchange
from facet.server.anthropic.question import make_question
from facet.server.anthropic.wire import CountTokensRequest, MessagesRequest, TokenCount
from facet.server.body import BodyDecoder
from facet.server.exchange import carry_out
from facet.server.frontend import Frontend, json_response


class MessagesEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(MessagesRequest)

    async def __call__(self, request: Request) -> Response:
        frontend = self._frontend
        fields: MessagesRequest
        async with frontend.reading(request, self._decoder) as fields:
            model = frontend.model_named(fields.model)
            question = make_question(fields, model.asked)
            frontend.check_tool_choice(question)
            response_id = f"msg_{secrets.token_hex(12)}"
            prepared = await frontend.prepare(question, model, response_id)
            keeps_thoughts = fields.thinking is None or fields.thinking.display != "omitted"
        exchange = MessageExchange(response_id, prepared, model, keeps_thoughts=keeps_thoughts)
        return await carry_out(exchange, prepared.requests, frontend, request, n=1, stream=bool(fields.stream))


class TokenCountEndpoint:
    """Counts the tokens of the prompt that /v1/messages would make."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(CountTokensRequest)

    async def __call__(self, request: Request) -> Response:
        frontend = self._frontend
        fields: CountTokensRequest
        async with frontend.reading(request, self._decoder) as fields:
            model = frontend.model_named(fields.model)
            return json_response(TokenCount(await frontend.count_tokens(make_question(fields, model.asked))))
