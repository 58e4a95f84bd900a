"""Structured output with the bundled model, as the openai package asks for it and parses it."""

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Literal

import pydantic
import pytest

from facet.bundled_model import find_bundled_model
from facet.config import ServerConfig
from tests.late_imports import LateImport
from tests.server.running import RunningServer, running_with_engine

if TYPE_CHECKING:
    import openai
else:
    openai = LateImport("openai")


class Country(pydantic.BaseModel):
    name: str
    code: str


class City(pydantic.BaseModel):
    name: str
    country: Country
    population: int
    is_capital: bool | None


class Mood(Enum):
    CALM = "calm"
    STORMY = "stormy"


class Forecast(pydantic.BaseModel):
    mood: Mood
    wind: Literal["north", "south"]
    degrees: list[int] = pydantic.Field(min_length=2, max_length=3)


class Step(pydantic.BaseModel):
    explanation: str = pydantic.Field(max_length=20)
    output: bool | Literal["unknown"]


class Solution(pydantic.BaseModel):
    steps: list[Step] = pydantic.Field(max_length=2)
    note: str | None = None
    code: str = pydantic.Field(pattern=r'^[A-Z]{2}"\d\t$')


class Branch(pydantic.BaseModel):
    value: int
    children: list["Branch"] = pydantic.Field(max_length=1)


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
    with running_with_engine(config) as server:
        yield server


@pytest.mark.parametrize(
    ("model", "temperature"), [(City, 0), (Forecast, 0), (Forecast, 1), (Solution, 0), (Solution, 1), (Branch, 0)]
)
def test_a_pydantic_model_is_parsed(server: RunningServer, model: type[pydantic.BaseModel], temperature: float) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.parse(
            model="bundled",
            messages=[{"role": "user", "content": "Tell me about Lisbon."}],
            response_format=model,
            temperature=temperature,
            seed=1,
            max_tokens=400,
        )
    message = answer.choices[0].message
    assert isinstance(message.parsed, model)
    assert message.content is not None
    assert len(message.content) <= len(message.parsed.model_dump_json()) + 20, "white space or needless escapes"
