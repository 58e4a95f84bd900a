"""/v1/responses: items, events, what is stored and for whom, as OpenAI's own client sends and reads them."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from facet.engine.messages import Refused
from facet.server.responses.store import ResponseStore
from facet.server.responses.wire import Reasoning, ResponseObject, TextSettings
from facet.tokens import Tokenizer
from tests.late_imports import LateImport
from tests.server.conftest import Scripted
from tests.server.running import NO_CERTIFICATES, RunningServer, wait_until

if TYPE_CHECKING:
    import openai
else:
    openai = LateImport("openai")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
THOUGHT = "<|channel>thought\nThe wind is light.\n<channel|>"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'


@pytest.fixture(scope="module")
def talking(scripted: Scripted) -> Iterator[tuple[RunningServer, Any]]:
    """A server whose model thinks, speaks and calls."""
    with scripted(THOUGHT + "I look." + CALL) as (server, engine):
        yield server, engine


def client_of(server: RunningServer, key: str = "none") -> "openai.OpenAI":
    return openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key=key,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(verify=NO_CERTIFICATES),
    )


def prompt_of(engine: Any, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(engine.submitted[-1].prompt_token_ids, skip_special_tokens=False)


def post(server: RunningServer, **body: Any) -> httpx.Response:
    return server.post("/v1/responses", {"model": "tiny", "input": "Weather in Paris?", **body})


def test_a_response_has_items_in_the_order_they_were_written(talking: tuple[RunningServer, Any]) -> None:
    server, engine = talking
    settings: Any = {"model": "tiny", "input": "Weather?", "tools": [TOOL], "metadata": {"a": "b"}}
    with client_of(server) as client:
        whole = client.responses.create(**settings, instructions="Be brief.", temperature=0.5)
        with client.responses.stream(**settings) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
    for response in (whole, streamed):
        thought, message, call = response.output
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert [part.text for part in thought.content] == ["The wind is light."]
        assert message.type == "message"
        assert (message.content[0].type, response.output_text) == ("output_text", "I look.")
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        assert {thought.status, message.status, call.status, response.status} == {"completed"}
        assert (response.model, response.metadata, response.error) == ("tiny", {"a": "b"}, None)
        usage = response.usage
        assert usage is not None
        assert usage.input_tokens_details.cached_tokens == 4
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert usage.output_tokens_details.reasoning_tokens > 0
    assert whole.usage is not None
    assert whole.usage.input_tokens == len(engine.submitted[0].prompt_token_ids)
    assert (whole.temperature, whole.instructions) == (0.5, "Be brief.")
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    once = [name for place, name in enumerate(names) if names[place - 1 : place] != [name]]
    assert once[2:-1] == [
        *("response.output_item.added", "response.content_part.added", "response.reasoning_text.delta"),
        *("response.reasoning_text.done", "response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        *("response.output_item.added", "response.function_call_arguments.delta"),
        *("response.function_call_arguments.done", "response.output_item.done"),
    ]


def test_a_custom_tool_takes_text(scripted: Scripted, tokenizer: Tokenizer) -> None:
    """As OpenAI's client reads it, whole and streamed; then a round trip with its own items."""
    tool = {"type": "custom", "name": "patch", "format": {"type": "text"}}
    settings: Any = {"model": "tiny", "input": "Change it.", "tools": [tool]}
    with (
        scripted('<|tool_call>call:patch{input:<|"|>say "hi"\n<|"|>}<tool_call|>') as (server, engine),
        client_of(server) as client,
    ):
        whole = client.responses.create(**settings)
        (call,) = whole.output
        parts, done = [], None
        for event in client.responses.create(**settings, stream=True):
            if event.type == "response.custom_tool_call_input.delta":
                parts.append(event.delta)
            elif event.type == "response.custom_tool_call_input.done":
                done = event.input
        result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
        client.responses.create(**{**settings, "input": [result]}, previous_response_id=whole.id)
        stored = prompt_of(engine, tokenizer)
        asked = {"role": "user", "content": "Change it."}
        client.responses.create(**{**settings, "input": [asked, call.model_dump(exclude_none=True), result]})
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("patch", 'say "hi"\n')
    assert "".join(parts) == done == 'say "hi"\n'
    assert prompt_of(engine, tokenizer) == stored
    assert "<|tool_call>patch<tool_call|>" in stored


def test_events_are_named_and_numbered(talking: tuple[RunningServer, Any]) -> None:
    with talking[0].client() as client:
        body = {"model": "tiny", "input": "a", "stream": True, "tools": [TOOL]}
        with client.stream("POST", "/v1/responses", json=body) as response:
            lines = [line for line in response.iter_lines() if line]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_conversation_is_rendered_like_that_of_a_chat(talking: tuple[RunningServer, Any]) -> None:
    server, engine = talking
    call = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"far": 2.50}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a <turn|>"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}], "id": "msg_1"},
        call,
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "c"},
        {"role": "developer", "content": "d"},
    ]
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a <turn|>"},
        {
            "role": "assistant",
            "content": "b",
            "reasoning": "hm",
            "tool_calls": [{"id": "call_1", "function": {"name": "get_weather", "arguments": '{"far": 2.50}'}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "assistant", "content": "c", "reasoning": "so"},
        {"role": "developer", "content": "d"},
    ]
    assert post(server, input=items, instructions="Be brief.").status_code == 200
    ours = engine.submitted[-1].prompt_token_ids
    assert server.post("/v1/chat/completions", {"messages": chat}).status_code == 200
    assert ours == engine.submitted[-1].prompt_token_ids


def test_null_stands_for_what_is_left_out(talking: tuple[RunningServer, Any]) -> None:
    """As typed clients write items whose optional fields are not set."""
    server, engine = talking
    text = {"type": "output_text", "text": "b"}
    nothing = dict.fromkeys(("type", "id", "status", "phase"))
    lean = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [text]},
        {"role": "user", "content": "c"},
    ]
    full = [
        {**nothing, **lean[0]},
        {**nothing, "type": "reasoning", "summary": None, "content": None, "encrypted_content": None},
        {**nothing, "role": "assistant", "content": [{**text, "annotations": None, "logprobs": None}]},
        {**nothing, **lean[2]},
    ]
    prompts = []
    for items in (lean, full):
        assert post(server, input=items).status_code == 200
        prompts.append(engine.submitted[-1].prompt_token_ids)
    assert prompts[0] == prompts[1]


def test_a_call_that_was_cut_off_may_be_sent_back(scripted: Scripted, tokenizer: Tokenizer) -> None:
    """It is left out, whether the client sends the output again or names the response."""
    with scripted(CALL) as (server, engine):
        question = {"role": "user", "content": "Weather?"}
        cut = post(server, input=[question], tools=[TOOL], max_output_tokens=len(tokenizer.encode(CALL)) - 6).json()
        assert (cut["output"][0]["type"], cut["output"][0]["status"]) == ("function_call", "incomplete")
        go_on = {"role": "user", "content": "Go on."}
        assert post(server, input=[question, *cut["output"], go_on], tools=[TOOL]).status_code == 200
        assert "<|tool_call>" not in prompt_of(engine, tokenizer)
        cut["output"][0]["status"] = "completed"
        refused = post(server, input=[question, *cut["output"], go_on], instructions="Be brief.")
    assert refused.status_code == 400
    assert "input[1].arguments is not the JSON of an object" in refused.json()["error"]["message"]


def test_results_are_paired_with_calls_by_id(talking: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    """Outputs come as they are ready: behind all calls in any order, or each behind its own."""
    server, engine = talking
    calls = [{"type": "function_call", "call_id": name, "name": "get_weather", "arguments": "{}"} for name in "ab"]
    results = [{"type": "function_call_output", "call_id": name, "output": f"result {name}"} for name in "ab"]
    prompts = []
    for items in ([*calls, *results], [*calls, *results[::-1]], [calls[0], results[0], calls[1], results[1]]):
        assert post(server, input=[{"role": "user", "content": "Weather?"}, *items]).status_code == 200
        prompts.append(prompt_of(engine, tokenizer))
        assert prompts[-1].index("result a") < prompts[-1].index("result b")
    assert prompts[0] == prompts[1]


def test_a_later_request_goes_on_from_an_earlier_one(talking: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    """Items and calls are carried over, instructions are not; `store: false` keeps nothing."""
    server, engine = talking
    first = post(server, tools=[TOOL], instructions="Be brief.").json()
    call = first["output"][2]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    second = post(server, tools=[TOOL], previous_response_id=first["id"], input=[result]).json()
    carried = engine.submitted[-1].prompt_token_ids
    prompt = prompt_of(engine, tokenizer)
    assert "Be brief." not in prompt
    assert prompt.endswith(
        "I look.<|tool_call>get_weather<tool_call|><turn|>\n<|turn>tool\nrain<turn|>\n<|turn>model\n"
    )
    post(server, tools=[TOOL], input=[{"role": "user", "content": "Weather in Paris?"}, *first["output"], result])
    assert engine.submitted[-1].prompt_token_ids == carried
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    del references[0]["type"]  # OpenAI's clients need not send it
    repeated = [{"role": "user", "content": "Weather in Paris?"}, *references, result]
    assert post(server, tools=[TOOL], input=repeated).status_code == 200
    assert engine.submitted[-1].prompt_token_ids == carried
    post(server, previous_response_id=second["id"], input="And now?")
    assert prompt_of(engine, tokenizer).count("I look.") == 2
    unstored = post(server, store=False).json()
    assert post(server, previous_response_id=unstored["id"]).status_code == 400
    assert server.get(f"/v1/responses/{unstored['id']}").status_code == 404


def test_tokens_are_counted_without_an_answer(talking: tuple[RunningServer, Any]) -> None:
    """Those of a conversation that goes on, too."""
    server, engine = talking
    with client_of(server) as client:
        earlier = client.responses.create(model="tiny", input="Weather?", tools=[TOOL])  # type: ignore[list-item]
        settings: Any = {"model": "tiny", "input": "And now?", "tools": [TOOL], "previous_response_id": earlier.id}
        num_submitted = len(engine.submitted)
        counted = client.responses.input_tokens.count(**settings)
        assert len(engine.submitted) == num_submitted
        client.responses.create(**settings)
    assert counted.input_tokens == len(engine.submitted[-1].prompt_token_ids)
    assert counted.object == "response.input_tokens"
    wrong = server.post("/v1/responses/input_tokens", {"input": "a", "previous_response_id": "resp_none"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "previous_response_id")


def test_retrieve_and_delete(talking: tuple[RunningServer, Any]) -> None:
    with client_of(talking[0]) as client:
        made = client.responses.create(model="tiny", input="a")
        assert client.responses.retrieve(made.id) == made
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.cancel(made.id)
        client.responses.delete(made.id)
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="no longer"):
                ask(made.id)


def test_a_response_belongs_to_the_key_it_was_made_with(scripted: Scripted) -> None:
    with scripted("one", api_key=("first", "second")) as (server, _):
        with client_of(server, "first") as mine, client_of(server, "second") as yours:
            made = mine.responses.create(model="tiny", input="a")
            assert mine.responses.retrieve(made.id).id == made.id
            for ask in (yours.responses.retrieve, yours.responses.delete, yours.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    ask(made.id)
            with pytest.raises(openai.BadRequestError, match="no such response"):
                yours.responses.create(model="tiny", input="a", previous_response_id=made.id)
            reference: Any = {"type": "item_reference", "id": made.output[0].id}
            with pytest.raises(openai.BadRequestError, match="does not have"):
                yours.responses.create(model="tiny", input=[reference])
        with client_of(server, "third") as nobody, pytest.raises(openai.AuthenticationError):
            nobody.responses.create(model="tiny", input="a")


def test_in_the_background(scripted: Scripted) -> None:
    with scripted("one two three") as (server, engine), client_of(server) as client:
        engine.gate.clear()
        begun = client.responses.create(model="tiny", input="a", background=True)
        other = client.responses.create(model="tiny", input="b", background=True)
        assert (begun.status, begun.output) == ("in_progress", [])
        assert client.responses.retrieve(begun.id).status == "in_progress"
        with pytest.raises(openai.BadRequestError, match="has not ended"):
            client.responses.create(model="tiny", input="c", previous_response_id=begun.id)
        assert client.responses.cancel(other.id).status == "cancelled"
        wait_until(lambda: len(engine.cancelled) == 1)
        engine.gate.set()
        wait_until(lambda: client.responses.retrieve(begun.id).status == "completed")
        assert client.responses.retrieve(begun.id).output_text == "one two three"
        assert client.responses.cancel(begun.id).status == "completed"
        assert client.responses.cancel(other.id).status == "cancelled"


def test_a_mistake_that_shows_in_the_background_is_no_fault_of_the_server(scripted: Scripted) -> None:
    with scripted("one two three") as (server, engine), client_of(server) as client:
        engine.gate.clear()
        begun = client.responses.create(model="tiny", input="a", background=True)
        wait_until(lambda: len(engine.submitted) == 1)
        engine.refuse(Refused(engine.submitted[0].request_id, "Too long by far.", "max_tokens", False))
        wait_until(lambda: client.responses.retrieve(begun.id).status == "failed")
        error = client.responses.retrieve(begun.id).error
        assert error is not None
        assert (error.code, error.message) == ("invalid_prompt", "Too long by far.")
        engine.gate.set()


def test_an_answer_that_is_cut_off_is_incomplete(scripted: Scripted) -> None:
    with scripted("one two three") as (server, _), client_of(server) as client:
        whole = client.responses.create(model="tiny", input="a", max_output_tokens=2)
        with client.responses.stream(model="tiny", input="a", max_output_tokens=2) as stream:
            assert [event.type for event in stream][-1] == "response.incomplete"
    assert (whole.status, whole.output[0].status) == ("incomplete", "incomplete")  # type: ignore[union-attr]
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"


def test_a_stream_that_fails_says_so(scripted: Scripted) -> None:
    with scripted("one two three", engine={"fail_after": 2}) as (server, _), client_of(server) as client:
        with pytest.raises(openai.InternalServerError, match="NaN"):
            client.responses.create(model="tiny", input="a")
        *_, last = client.responses.create(model="tiny", input="a", stream=True)
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert "NaN" in last.response.error.message


def test_settings_reach_the_engine(talking: tuple[RunningServer, Any], tokenizer: Tokenizer) -> None:
    server, engine = talking
    post(server, reasoning={"effort": "high", "max_tokens": 7, "summary": "auto"}, top_p=0.5, temperature=0.25)
    sampling = engine.submitted[-1].sampling
    assert (sampling.thinking_token_budget, sampling.top_p, sampling.temperature) == (7, 0.5, 0.25)
    assert "<|think|>" in prompt_of(engine, tokenizer)
    schema = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}
    answer = post(server, text={"format": schema}).json()
    assert answer["text"]["format"] == schema
    assert engine.submitted[-1].grammar.field == "response_format"
    post(server, tools=[TOOL], tool_choice={"type": "function", "name": "get_weather"})
    assert engine.submitted[-1].grammar.kind == "tool_calls"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"previous_response_id": "resp_no"}, "previous_response_id", "no such response"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
            "input",
            "an image",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input", "input[0].content[0] is a file"),
        ({"input": []}, "input", "input is empty"),
        ({"input": [{"role": "king", "content": "a"}]}, "input[0].role", "invalid enum value 'king'"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"type": "function_call", "call_id": "a"}]}, "input[0].name", "is required"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input", "only another server"),
        ({"input": None}, "input", "expected str | array"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0] has the type 'web_search'"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools", "tools[0].name is 'a b'"),
        ({"tools": [{"type": "function", "name": "a", "parameters": []}]}, "tools", "tools[0].parameters must be"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools", "tools[0] has its name in function"),
        ({"tools": [{"type": "custom"}]}, "tools", "tools[0].name is None"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice", '{"type": "function", "name": "..."}'),
        ({"tool_choice": {"type": "function"}}, "tool_choice", '{"type": "function", "name": "..."}'),
        ({"conversation": "conv_1"}, "conversation", "not supported"),
        ({"prompt": {"id": "a"}}, "prompt", "not supported"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"include": ["message.output_text.logprobs"]}, "include", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", '"name": "...", "schema": {...}}'),
        ({"background": True, "store": False}, "store", "must be stored"),
        ({"background": True, "stream": True}, "stream", "cannot be streamed"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning.effort is 'huge'"),
        ({"reasoning": {"max_tokens": 5000}}, "reasoning.max_tokens", "the context has only"),
    ],
)
def test_what_is_wrong_is_named(
    talking: tuple[RunningServer, Any], body: dict[str, Any], param: str, words: str
) -> None:
    response = post(talking[0], **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("BadRequestError", param)
    assert words in error["message"]


class TestStore:
    @staticmethod
    def response(name: str, size: int = 0) -> ResponseObject:
        return ResponseObject(
            id=name,
            created_at=0,
            model="m" * size,
            status="completed",
            output=[],
            metadata={},
            parallel_tool_calls=True,
            reasoning=Reasoning(),
            background=False,
            store=True,
            temperature=1.0,
            top_p=1.0,
            text=TextSettings(),
            tools=[],
            tool_choice="auto",
        )

    def kept(self, store: ResponseStore) -> list[str]:
        return [name for name in "abcde" if store.find(name, b"k") is not None]

    def test_the_oldest_go_first(self) -> None:
        store = ResponseStore(max_responses=2)
        for name in "abc":
            store.put(b"k", self.response(name), [])
        assert self.kept(store) == ["b", "c"]
        store.put(b"k", self.response("b"), [])  # a new state makes it the newest
        store.put(b"k", self.response("d"), [])
        assert self.kept(store) == ["b", "d"]

    def test_bytes_are_bounded(self) -> None:
        store = ResponseStore(max_bytes=10_000)
        for name in "abcd":
            store.put(b"k", self.response(name, 3_000), [{"role": "user", "content": "x"}])
        assert self.kept(store) == ["c", "d"]
        store.put(b"k", self.response("e", 20_000), [])
        assert self.kept(store) == []
        assert len(store) == 0

    def test_age_is_bounded(self) -> None:
        now = [0.0]
        store = ResponseStore(max_age_seconds=10, clock=lambda: now[0])
        store.put(b"k", self.response("a"), [])
        now[0] = 6.0
        store.put(b"k", self.response("b"), [])
        assert self.kept(store) == ["a", "b"]
        now[0] = 11.0
        assert self.kept(store) == ["b"]
        assert len(store) == 1
