"""Structured output with the bundled model: what clients parse."""

from collections.abc import Iterator

import openai
import pydantic
import pytest

from facet.bundled_model import find_bundled_model
from facet.config import ServerConfig, engine_config
from facet.server.app import make_app
from facet.server.engine_process import EngineProcess
from facet.server.served_model import make_served_model
from tests.server.running import RunningServer, running


class Country(pydantic.BaseModel):
    name: str
    code: str


class City(pydantic.BaseModel):
    name: str
    country: Country
    population: int
    is_capital: bool | None


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    config = ServerConfig(
        model=str(find_bundled_model()),
        served_model_name=("bundled",),
        disable_log_stats=True,
        device="cpu",
        kv_cache_memory_bytes=16 << 20,
        max_model_len=1024,
    )
    engine = EngineProcess(engine_config(config))
    with running(make_app(config, engine, make_served_model(config, engine.info))) as server:
        yield server


def test_a_pydantic_model_is_parsed(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model="bundled",
            messages=[{"role": "user", "content": "Tell me about Lisbon."}],
            response_format=City,
            temperature=0,
            max_tokens=400,
        )
    assert isinstance(answer.choices[0].message.parsed, City)
    assert answer.choices[0].message.content == answer.choices[0].message.parsed.model_dump_json()
