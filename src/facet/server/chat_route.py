"""/v1/chat/completions: answers a conversation, with thoughts and tool calls separated from the content."""

from starlette.requests import Request
from starlette.responses import Response

from facet.errors import RequestError
from facet.prompts import ChatQuestion
from facet.server.body import BodyDecoder
from facet.server.chat_answers import ChatExchange
from facet.server.dialect import renaming
from facet.server.exchange import carry_out
from facet.server.frontend import Frontend, response_id_of
from facet.server.protocol.chat import UNSUPPORTED_IN_CHAT, ChatRequest, check_end, names_used, reasoning_settings
from facet.server.protocol.legacy_functions import as_tool_choice, as_tool_messages, as_tools, refuse_mixture
from facet.server.protocol.sampling_fields import media_settings, refuse_unsupported, sampling_settings


class ChatEndpoint:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._decoder = BodyDecoder(ChatRequest)

    async def __call__(self, request: Request) -> Response:
        frontend = self._frontend
        fields: ChatRequest
        async with frontend.reading(request, self._decoder) as fields:
            with renaming(names_used(fields)):
                model = frontend.model_named(fields.model)
                refuse_unsupported(fields)
                refuse_unsupported(fields, UNSUPPORTED_IN_CHAT)
                question = self._question(fields)
                frontend.check_tool_choice(question)
                response_id = response_id_of("chatcmpl", fields.request_id, request)
                prepared = await frontend.prepare(question, model, response_id)
        exchange = ChatExchange(
            response_id, fields, prepared, model, always_ends_with_usage=frontend.config.enable_force_include_usage
        )
        with renaming(names_used(fields)):
            return await carry_out(
                exchange, prepared.requests, frontend, request, n=len(prepared.requests), stream=bool(fields.stream)
            )

    def _question(self, fields: ChatRequest) -> ChatQuestion:
        model = self._frontend.model
        model.check_logprobs(fields.top_logprobs, "top_logprobs")
        model.check_num_named(fields.logprob_token_ids)
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(fields, name) and not fields.logprobs:
                raise RequestError(f"{name} needs logprobs. Set logprobs to true.", field=name)
        model.check_logprobs(fields.prompt_logprobs, "prompt_logprobs")
        check_end(
            continue_final_message=fields.continue_final_message, add_generation_prompt=fields.add_generation_prompt
        )
        given, reasoning = sampling_settings(fields), reasoning_settings(fields)
        if reasoning.max_tokens is not None:
            given["thinking_token_budget"] = reasoning.max_tokens
        if fields.max_completion_tokens is not None:
            given["max_tokens"] = fields.max_completion_tokens
        if fields.logprobs:
            given["logprobs"] = fields.top_logprobs or 0
        refuse_mixture(fields)
        return ChatQuestion(
            messages=as_tool_messages(fields.messages),
            sampling=model.asked.sampling(given, max_tokens=None),
            is_max_tokens_default="max_tokens" not in given,
            response_format=fields.response_format,
            priority=fields.priority or 0,
            cache_salt=fields.cache_salt,
            tools=fields.tools if fields.functions is None else as_tools(fields.functions),
            tool_choice=fields.tool_choice if fields.functions is None else as_tool_choice(fields.function_call),
            parallel_tool_calls=fields.parallel_tool_calls is not False and not fields.functions,
            reasoning_effort=reasoning.effort,
            chat_template=fields.chat_template,
            chat_template_kwargs=fields.chat_template_kwargs,
            documents=fields.documents,
            mm_processor_kwargs=media_settings(fields.mm_processor_kwargs, fields.media_io_kwargs),
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=bool(fields.continue_final_message),
            add_special_tokens=bool(fields.add_special_tokens),
        )
