"""Clients of the other APIs with the bundled model: each makes a tool round trip and reads a stream."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ollama
import pydantic
import pytest

from facet.bundled_model import find_bundled_model
from facet.config import ServerConfig
from tests.late_imports import LateImport
from tests.server.running import RunningServer, running_with_engine

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic = LateImport("anthropic")
    openai = LateImport("openai")

KEY = "secret"
QUESTION = "What is the weather in Lisbon?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTION = "The weather in a city."
RESULT = json.dumps({"weather": "rain", "degrees": 12})


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = ServerConfig(
        model=str(find_bundled_model()),
        served_model_name=("bundled",),
        api_key=(KEY,),
        disable_log_stats=True,
        device="cpu",
        kv_cache_memory_bytes=16 << 20,
        max_model_len=1024,
    )
    with running_with_engine(config) as server:
        yield server


class City(pydantic.BaseModel):
    name: str
    is_capital: bool


def test_openai_chat(server: RunningServer) -> None:
    function = {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA}
    messages: Any = [{"role": "user", "content": QUESTION}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        settings: Any = {"model": "bundled", "temperature": 0, "max_tokens": 64}
        offered: Any = {**settings, "tools": [{"type": "function", "function": function}]}
        asked = client.chat.completions.create(**offered, messages=messages).choices[0].message
        (call,) = asked.tool_calls or ()
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Lisbon"}
        messages += [asked.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        told = client.chat.completions.create(**offered, messages=messages).choices[0].message.content
        assert "12" in (told or "")
        chunks = client.chat.completions.create(**offered, messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == told
        question: Any = [{"role": "user", "content": "Tell me about Lisbon."}]
        parsed = client.chat.completions.parse(**settings, messages=question, response_format=City)
        assert isinstance(parsed.choices[0].message.parsed, City)


def test_openai_responses(server: RunningServer) -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA}]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        settings: Any = {"model": "bundled", "tools": tools, "temperature": 0, "max_output_tokens": 64}
        asked = client.responses.create(**settings, input=QUESTION)
        (call,) = asked.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"city": "Lisbon"}
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        told = client.responses.create(**settings, input=[result], previous_response_id=asked.id)
        assert "12" in told.output_text
        with client.responses.stream(**settings, input=[result], previous_response_id=asked.id) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            assert text == stream.get_final_response().output_text == told.output_text
        parsed = client.responses.parse(
            model="bundled", input="Tell me about Lisbon.", text_format=City, temperature=0, max_output_tokens=100
        )
        assert isinstance(parsed.output_parsed, City)


def test_anthropic(server: RunningServer) -> None:
    tools: Any = [{"name": "get_weather", "description": DESCRIPTION, "input_schema": SCHEMA}]
    messages: Any = [{"role": "user", "content": QUESTION}]
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        # The package has no argument for the temperature any more; the API has it.
        settings: Any = {"model": "bundled", "tools": tools, "max_tokens": 64, "extra_body": {"temperature": 0}}
        asked = client.messages.create(**settings, messages=messages)
        (use,) = asked.content
        assert isinstance(use, anthropic.types.ToolUseBlock)
        assert (use.input, asked.stop_reason) == ({"city": "Lisbon"}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
        messages += [asked.to_param(), {"role": "user", "content": [result]}]
        told = client.messages.create(**settings, messages=messages)
        with client.messages.stream(**settings, messages=messages) as stream:
            text = "".join(stream.text_stream)
        assert [block.type for block in told.content] == ["text"]
        assert told.content[0].text == text  # type: ignore[union-attr]
        assert "12" in text


def test_the_tool_runner_of_anthropic(server: RunningServer) -> None:
    """It asks for a conversation that the server keeps, and sends all of it if there is no such thing."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        assert city == "Lisbon", city
        return RESULT

    settings: Any = {"model": "bundled", "max_tokens": 64, "tools": [get_weather]}
    settings |= {"messages": [{"role": "user", "content": QUESTION}], "extra_body": {"temperature": 0}}
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        (told,) = client.beta.messages.tool_runner(**settings).until_done().content
        assert told.type == "text"
        assert "12" in told.text
        with pytest.raises(anthropic.BadRequestError, match="thread is not supported"):
            client.beta.messages.thread(model="bundled", max_tokens=8).send({"role": "user", "content": QUESTION})


def test_ollama(server: RunningServer) -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": SCHEMA}}
    ]
    messages: Any = [{"role": "user", "content": QUESTION}]
    with ollama.Client(host=server.url, headers={"authorization": f"Bearer {KEY}"}) as client:
        settings: Any = {"tools": tools, "options": {"temperature": 0, "num_predict": 64}}
        asked = client.chat("bundled", messages, **settings)
        (call,) = asked.message.tool_calls or ()
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Lisbon"})
        messages += [asked.message, {"role": "tool", "content": RESULT, "tool_name": "get_weather"}]
        told = client.chat("bundled", messages, **settings)
        assert "12" in (told.message.content or "")
        lines = client.chat("bundled", messages, **settings, stream=True)
        assert "".join(line.message.content or "" for line in lines) == told.message.content
