"""Makes a tool round trip and reads a stream with every client that is heavy to install. Run by run.py.

Every check gets the server's address from the environment and raises if something is not as it should be.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL, KEY, MODEL = os.environ["FACET_URL"], os.environ["FACET_KEY"], os.environ["FACET_MODEL"]
QUESTION = "What is the weather in Lisbon?"
DESCRIPTION = "The weather in a city."
TOO_LONG = "too long " * 50_000
RESULT = json.dumps({"weather": "rain", "degrees": 12})


def get_weather(city: str) -> str:
    """The weather in a city."""
    assert city == "Lisbon", city
    return RESULT


def check_openai_agents() -> None:
    import agents
    import openai

    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY), use_for_tracing=False)
    agent = agents.Agent(
        name="forecaster",
        model=MODEL,
        tools=[agents.function_tool(get_weather)],
        model_settings=agents.ModelSettings(temperature=0, max_tokens=64),
    )

    async def both() -> tuple[str, str]:
        told = await agents.Runner.run(agent, QUESTION)
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        parts = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return told.final_output, "".join(parts)

    told, streamed = asyncio.run(both())
    assert "12" in told, told
    assert streamed == told, (streamed, told)


def check_langchain_openai() -> None:
    from langchain_openai import ChatOpenAI

    options: Any = {"base_url": f"{URL}/v1", "api_key": KEY, "model": MODEL, "temperature": 0, "max_tokens": 64}
    for uses_responses in (False, True):
        _check_langchain(ChatOpenAI(**options, use_responses_api=uses_responses))


def check_langchain_anthropic() -> None:
    from langchain_anthropic import ChatAnthropic

    _check_langchain(ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, max_tokens=64, temperature=0))


def _check_langchain(model: Any) -> None:
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    bound = model.bind_tools([tool(get_weather)])
    messages: list[Any] = [HumanMessage(QUESTION)]
    asked = bound.invoke(messages)
    (call,) = asked.tool_calls
    assert call["args"] == {"city": "Lisbon"}, call
    messages += [asked, ToolMessage(RESULT, tool_call_id=call["id"])]
    told = bound.invoke(messages).text
    assert "12" in told, told
    assert "".join(part.text for part in bound.stream(messages)) == told
    try:
        model.invoke(TOO_LONG)
    except ContextOverflowError:
        return
    raise AssertionError("A prompt that is too long was not seen as such.")


def check_pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    models: list[Any] = [OpenAIChatModel(MODEL, provider=provider), OpenAIResponsesModel(MODEL, provider=provider)]

    async def both(model: Any) -> tuple[str, str]:
        agent = Agent(model, tools=[get_weather], model_settings={"temperature": 0, "max_tokens": 64})
        told = (await agent.run(QUESTION)).output
        async with agent.run_stream(QUESTION) as streamed:
            parts = [part async for part in streamed.stream_text(delta=True)]
        return told, "".join(parts)

    async def each() -> None:
        for model in models:
            told, streamed = await both(model)
            assert "12" in told, (model, told)
            assert streamed == told, (model, streamed, told)

    asyncio.run(each())


def check_litellm() -> None:
    import litellm

    litellm.suppress_debug_info = True  # it prints advice for names of models that it does not know
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": DESCRIPTION, "parameters": schema}
    for name, url in (
        (f"openai/{MODEL}", f"{URL}/v1"),
        (f"openai/responses/{MODEL}", f"{URL}/v1"),
        (f"anthropic/{MODEL}", URL),
    ):
        options: Any = {"model": name, "api_base": url, "api_key": KEY, "temperature": 0, "max_tokens": 64}
        options["tools"] = [{"type": "function", "function": function}]
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        asked = litellm.completion(messages=messages, **options).choices[0].message
        (call,) = asked.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Lisbon"}, (name, call)
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": RESULT}
        messages += [asked.model_dump(exclude_none=True), result]
        told = litellm.completion(messages=messages, **options).choices[0].message.content
        assert "12" in told, (name, told)
        parts = litellm.completion(messages=messages, stream=True, **options)
        assert "".join(part.choices[0].delta.content or "" for part in parts) == told, name
        try:
            litellm.completion(**{**options, "messages": [{"role": "user", "content": TOO_LONG}]})
        except litellm.ContextWindowExceededError:
            continue
        raise AssertionError(f"{name}: a prompt that is too long was not seen as such.")


def check_instructor() -> None:
    import instructor
    import openai
    import pydantic

    class Place(pydantic.BaseModel):
        """A city and whether it is a capital."""

        name: str
        is_capital: bool

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    settings: Any = {"model": MODEL, "temperature": 0, "response_model": Place}
    messages: Any = [{"role": "user", "content": "Tell me about Lisbon."}]
    for mode in (instructor.Mode.TOOLS, instructor.Mode.RESPONSES_TOOLS):
        wrapped = instructor.from_openai(client, mode=mode)
        assert isinstance(wrapped.chat.completions.create(messages=messages, **settings), Place), mode
    wrapped = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    *_, last = wrapped.chat.completions.create_partial(messages=messages, **settings)
    assert isinstance(last.name, str)


def main() -> int:
    checks: dict[str, Callable[[], None]] = {
        name.removeprefix("check_"): value for name, value in globals().items() if name.startswith("check_")
    }
    wanted = sys.argv[1:] or list(checks)
    failed = []
    for name in wanted:
        try:
            checks[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {'failed' if name in failed else 'a tool round trip and a stream'}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
