"""Answers bound by grammars, on a model whose weights are random: whatever it wants to say, the shape holds.

FACET_NUM_SCHEMAS=500 tries as many random schemas.
"""

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from facet.chat.answer_grammar import (
    choice_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)
from facet.chat.formats import ReplyMarkers
from facet.chat.tool_choice import normalize_tools
from facet.chat.tool_grammar import thought_tokens, tool_call_grammar
from facet.engine.engine import Engine
from facet.engine.messages import Refused, Submit, ToEngine
from facet.engine.service import EngineService, make_info
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.scheduler.drafting import Drafter
from facet.step import StepPlan
from facet.tokens import Tokenizer
from tests.engine.harness import Answer, Rememberer, kv_layout, make_engine, mixed_requests, run
from tests.engine.random_schemas import CallReader, random_parameters
from tests.model.paged_model import load
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import CONTROL_TOKENS, write_tokenizer_folder

NUM_SCHEMAS = int(os.environ.get("FACET_NUM_SCHEMAS", "100"))
EOS = (1, 16)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
}
CLOCK = {"type": "object", "properties": {"zone": {"enum": ["utc", "local"]}}, "required": ["zone"]}


@dataclass(frozen=True)
class World:
    folder: Path
    model: Gemma
    tokenizer: Tokenizer
    markers: ReplyMarkers

    def engine(self, drafter: Drafter | None = None, **settings: Any) -> Engine:
        engine = make_engine(self.model, **settings)
        return Engine(engine.runner, engine.settings, self.folder, drafter)

    def tools(self, choice: Any = "auto", **settings: Any) -> GrammarSpec:
        tools = [_tool("weather", WEATHER), _tool("clock", CLOCK)]
        spec = tool_call_grammar(normalize_tools(tools, choice), self.markers, **settings)
        assert spec is not None
        return spec

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

    def pieces(self, token_ids: list[int]) -> list[str]:
        """Control tokens by themselves, and the texts between them."""
        pieces: list[str] = []
        plain: list[int] = []
        for token_id in [*token_ids, 0]:
            if token_id >= len(CONTROL_TOKENS):
                plain.append(token_id)
            else:
                pieces += [self.text(plain)] * bool(plain) + [CONTROL_TOKENS[token_id]]
                plain = []
        return pieces[:-1]

    def read_call(self, token_ids: list[int]) -> tuple[str, Any]:
        return CallReader(self.pieces(token_ids), frozenset(CONTROL_TOKENS)).read()

    def calls(self, token_ids: list[int]) -> list[tuple[str, Any]]:
        """Every call that was closed. Between them there may be anything."""
        found, start = [], None
        for place, token_id in enumerate(token_ids):
            if token_id == self.markers.opens_call and start is None:
                start = place
            elif token_id == self.markers.closes_call and start is not None:
                found.append(self.read_call(token_ids[start : place + 1]))
                start = None
        return found


@pytest.fixture(scope="module")
def world(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("constrained")
    shutil.copytree(tiny_model("gemma4_e2b_small").folder, folder, dirs_exist_ok=True)
    write_tokenizer_folder(folder)
    tokenizer = Tokenizer.from_folder(folder)
    markers = ReplyMarkers.find(tokenizer)
    assert markers is not None
    return World(folder, load(folder, max_model_len=512).model, tokenizer, markers)


def _tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def request(name: str, grammar: GrammarSpec | None, **sampling: Any) -> Request:
    seed = sum(map(ord, name))
    settings = {"temperature": 1.0, "max_tokens": 480, "seed": seed, **sampling}
    return Request(
        request_id=name,
        prompt_token_ids=(2, 40 + seed % 300, 50 + seed % 200),
        sampling=SamplingParams(**settings),
        eos_token_ids=EOS,
        grammar=grammar,
    )


def test_calls_satisfy_random_schemas(world: World) -> None:
    """Nested objects, enums, arrays, optional properties, anyOf, references, bounds; at temperature 1."""
    parameters, requests = {}, []
    for seed in range(NUM_SCHEMAS):
        schema = random_parameters(random.Random(seed))
        use = normalize_tools([_tool("f", schema)], "required")
        parameters[f"schema{seed}"] = schema
        requests.append(request(f"schema{seed}", tool_call_grammar(use, world.markers, parallel=False)))
    # All at once, and each in every step: random words take long enough.
    answers = run(world.engine(max_num_seqs=NUM_SCHEMAS, overlapped=False), requests, check_every=200)
    for name, answer in answers.items():
        assert answer.finish_reason == "stop", f"{name}: {answer.error} {world.text(answer.token_ids)}"
        called, arguments = world.read_call(answer.token_ids[:-1])
        assert called == "f"
        # Without a look at the schema itself, which takes longer than the answer did.
        jsonschema.Draft202012Validator(parameters[name]).validate(arguments)


@pytest.mark.parametrize("overlapped", [True, False])
def test_a_required_call_is_all_there_is(world: World, overlapped: bool) -> None:
    specs = {
        "required": world.tools("required"),
        "single": world.tools("required", parallel=False),
        "named": world.tools({"type": "function", "function": {"name": "clock"}}),
    }
    bias = {world.markers.opens_call: 3.0}
    requests = [
        request(f"{kind}{i}", spec, logit_bias=bias, max_tokens=100) for kind, spec in specs.items() for i in range(5)
    ]
    num_calls: dict[str, list[int]] = {kind: [] for kind in specs}
    for name, answer in run(world.engine(overlapped=overlapped), requests).items():
        calls = world.calls(answer.token_ids)
        num_calls[name.rstrip("0123456789")].append(len(calls))
        if answer.finish_reason == "stop":
            assert world.pieces(answer.token_ids)[0] == "<|tool_call>"
            assert "".join(world.pieces(answer.token_ids)).count("<|tool_call>") == len(calls) > 0
        for called, arguments in calls:
            jsonschema.validate(arguments, {"weather": WEATHER, "clock": CLOCK}[called])
            assert called == "clock" or not name.startswith("named")
    assert set(num_calls["single"]) == {1}
    assert max(num_calls["required"]) > 1


@pytest.mark.parametrize("overlapped", [True, False])
def test_with_a_free_choice_only_calls_are_bound(world: World, overlapped: bool) -> None:
    bias = {world.markers.opens_call: 8.0, world.markers.opens_channel: -20.0}
    requests = [request(f"auto{i}", world.tools(), logit_bias=bias, max_tokens=120) for i in range(12)]
    requests += [request(f"once{i}", world.tools(parallel=False), logit_bias=bias, max_tokens=120) for i in range(6)]
    num_calls, texts = 0, []
    for name, answer in run(world.engine(overlapped=overlapped), requests).items():
        calls = world.calls(answer.token_ids)
        num_calls += len(calls)
        for called, arguments in calls:
            jsonschema.validate(arguments, {"weather": WEATHER, "clock": CLOCK}[called])
        opened = answer.token_ids.count(world.markers.opens_call)
        assert opened - len(calls) in (0, 1), "only the end of the answer may cut a call"
        assert opened <= 1 or name.startswith("auto")
        texts.append(answer.token_ids[0] != world.markers.opens_call)
    assert num_calls > 12
    assert any(texts), "text came before a call"


def test_free_text_does_not_wait_for_the_host(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step of a free request is launched before its token is known, that of a bound one after it."""
    markers = world.markers
    never = {markers.opens_call: -50.0, markers.opens_channel: -50.0}
    free = request("free", world.tools(), logit_bias=never, ignore_eos=True, max_tokens=40)
    bound = request("bound", regex_grammar("[a-z]{40}"), max_tokens=40)
    share_launched_ahead = {}
    for one in (free, bound):
        engine = world.engine(overlapped=True)
        launch, launched_ahead = engine.runner.launch, []

        def note(plan: StepPlan, engine: Engine = engine, launch: Any = launch, ahead: Any = launched_ahead) -> Any:
            ahead.append(engine._in_flight is not None)
            return launch(plan)

        monkeypatch.setattr(engine.runner, "launch", note)
        engine.submit(one)
        num_tokens = 0
        while engine.has_work:
            num_tokens += len(engine.step())
        assert num_tokens > 10
        share_launched_ahead[one.request_id] = sum(launched_ahead) / len(launched_ahead)
    assert share_launched_ahead["free"] > 0.9
    assert share_launched_ahead["bound"] == 0


def test_bound_requests_that_came_one_by_one_go_on_together(world: World) -> None:
    """Whoever waits for the host would else be computed in two halves, which take turns."""
    engine = world.engine(overlapped=True)
    names = {f"bound{i}" for i in range(4)}
    counts = dict.fromkeys(names, 0)
    shares = []
    for name in sorted(names):
        engine.submit(request(name, regex_grammar("[a-z]{60}"), max_tokens=60))
        while counts[name] == 0:  # the next one comes while others are in flight
            for event in engine.step():
                counts[event.request_id] += len(event.token_ids)
    while all(count < 20 for count in counts.values()):
        events = engine.step()
        shares.append({event.request_id for event in events})
        for event in events:
            counts[event.request_id] += len(event.token_ids)
    assert shares[1:] == [names] * len(shares[1:])


def test_a_free_choice_is_the_same_in_company_and_after_preemption(world: World) -> None:
    bias = {world.markers.opens_call: 3.0, world.markers.opens_channel: 1.0, world.markers.closes_channel: 3.0}
    requests = [request(f"auto{i}", world.tools(), logit_bias=bias, max_tokens=30, ignore_eos=True) for i in range(6)]
    check_with_preemptions(world, requests, answers_alone(world, requests))


def test_a_thought_is_free_and_then_the_grammar_holds(world: World) -> None:
    markers = world.markers
    thoughtful = thought_tokens(markers, thinking=True)
    inside = thought_tokens(markers, thinking=True, starts_in_thought=True)
    ends_soon = {markers.closes_channel: 11.0, markers.opens_channel: 3.0, EOS[0]: 12.0}
    choices = ("sunny", "rainy")
    requests = [
        *(request(f"opens{i}", choice_grammar(choices, thought=thoughtful), logit_bias=ends_soon) for i in range(8)),
        *(request(f"inside{i}", choice_grammar(choices, thought=inside), logit_bias=ends_soon) for i in range(4)),
        *(request(f"call{i}", world.tools("required", thinking=True), logit_bias=ends_soon) for i in range(4)),
    ]
    num_thoughts = 0
    for name, answer in run(world.engine(), requests).items():
        assert answer.finish_reason == "stop"
        text = world.text(answer.token_ids[:-1])
        is_thought = markers.opens_channel == answer.token_ids[0] or name.startswith("inside")
        num_thoughts += is_thought
        place = answer.token_ids.index(markers.closes_channel) + 1 if is_thought else 0
        said = answer.token_ids[place:-1]
        if name.startswith("call"):
            assert world.calls(said)
            assert said[0] == markers.opens_call
        else:
            assert world.text(said) in choices, text
    assert num_thoughts >= 6


def test_every_kind_of_grammar_holds(world: World) -> None:
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
    gbnf = 'root ::= sum\nsum ::= digit ("+" digit)*\ndigit ::= [0-9]\n'
    lark = "start: digit (/[+-]/ digit)*\ndigit: /[0-9]/\n"
    specs = {
        "schema": json_schema_grammar(person),
        "regex": regex_grammar(r"\d{3}-[a-f]{2,4}(é|ß)"),
        "choice": choice_grammar(["yes", 'no "really"', "naïve\nline"]),
        "gbnf": ebnf_grammar(gbnf),
        "lark": ebnf_grammar(lark),
        "object": json_object_grammar(),
    }
    ends = [world.tokenizer.token_to_id(f"<0x{ord(letter):02X}>") for letter in '}"]']
    bias = dict.fromkeys([*ends, *EOS], 3.0)
    requests = [
        request(f"{kind}{i}", spec, logit_bias=bias, max_tokens=150) for kind, spec in specs.items() for i in range(4)
    ]
    checks: dict[str, Callable[[str], Any]] = {
        "schema": lambda text: jsonschema.validate(json.loads(text), person),
        "regex": lambda text: _found(re.fullmatch(r"\d{3}-[a-f]{2,4}(é|ß)", text)),
        "choice": lambda text: _found(text in ["yes", 'no "really"', "naïve\nline"]),
        "gbnf": lambda text: _found(re.fullmatch(r"[0-9](\+[0-9])*", text)),
        "lark": lambda text: _found(re.fullmatch(r"[0-9]([+-][0-9])*", text)),
        "object": lambda text: _found(isinstance(json.loads(text), dict)),
    }
    num_ended = dict.fromkeys(specs, 0)
    for name, answer in run(world.engine(), requests).items():
        kind = name.rstrip("0123456789")
        if answer.finish_reason == "stop":
            num_ended[kind] += 1
            checks[kind](world.text(answer.token_ids[:-1]))
    assert all(num_ended.values()), num_ended
    assert num_ended["regex"] == num_ended["choice"] == 4


def _found(result: object) -> None:
    assert result


def answers_alone(world: World, requests: list[Request]) -> dict[str, Answer]:
    """Each request by itself, in an engine that keeps nothing of those before it."""
    engine = world.engine(overlapped=False, enable_prefix_caching=False)
    return {name: answer for one in requests for name, answer in run(engine, [one], check_every=1000).items()}


def check_with_preemptions(world: World, requests: list[Request], expected: dict[str, Answer]) -> None:
    """The same tokens where there is memory for a few of them."""
    longest = max(len(one.prompt_token_ids) + (one.sampling.max_tokens or 0) for one in requests)
    enough_for_few = 2 * need_of(kv_layout(world.model), 0, num_tokens=longest).num_blocks
    for overlapped in (True, False):
        engine = world.engine(num_blocks=enough_for_few, overlapped=overlapped, enable_prefix_caching=False)
        assert tokens_of(run(engine, requests)) == tokens_of(expected)
        assert engine.stats().scheduler.num_preemptions > 0


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in answers.items()}


def test_company_with_grammars_changes_nobodys_answer(world: World) -> None:
    free = [replace(one, request_id=f"free{one.request_id}") for one in mixed_requests(6, 512, count=10, seed=3)]
    bound = [request(f"bound{i}", world.tools("required"), temperature=0.0, max_tokens=30) for i in range(4)]
    alone = answers_alone(world, [*free, *bound])
    mixed = [one for pair in zip(free[:4], bound, strict=True) for one in pair] + free[4:]
    for overlapped in (True, False):
        assert tokens_of(run(world.engine(overlapped=overlapped), mixed)) == tokens_of(alone)


def test_a_preempted_request_goes_on_where_its_grammar_stood(world: World) -> None:
    requests = [request(f"p{i}", world.tools("required"), temperature=0.0, max_tokens=36) for i in range(6)]
    check_with_preemptions(world, requests, run(world.engine(), requests))


def test_drafts_change_no_bound_answer(world: World) -> None:
    """Right drafts, wrong ones and ones that the grammar forbids; calls that begin and end inside a run of drafts."""
    bias = {world.markers.opens_call: 3.0, world.markers.opens_channel: -20.0}
    specs = {
        "auto": world.tools(),
        "once": world.tools(parallel=False),
        "required": world.tools("required"),
        "schema": json_schema_grammar(WEATHER),
        "choice": choice_grammar(["yes", "no, never"]),
    }
    requests = [
        request(f"{name}{index}", spec, logit_bias=bias, max_tokens=60)
        for name, spec in specs.items()
        for index in range(3)
    ]
    expected = run(world.engine(overlapped=False), requests)
    assert any(answer.token_ids.count(world.markers.opens_call) > 1 for answer in expected.values())
    for overlapped in (False, True):
        drafter = Rememberer(requests, expected, world.model.spec.vocab_size, seed=4)
        engine = world.engine(drafter, overlapped=overlapped)
        assert tokens_of(run(engine, requests)) == tokens_of(expected)
        assert engine.stats().work.num_sampled_rows < sum(len(answer.token_ids) for answer in expected.values())


def test_what_cannot_be_compiled_is_refused_and_others_go_on(world: World) -> None:
    engine = world.engine()
    bad: dict[str, GrammarSpec] = {
        "regex": regex_grammar("(unclosed"),
        "grammar": ebnf_grammar("root ::= missing_rule\n"),
        "schema": json_schema_grammar({"type": "banana"}),
    }
    for name, spec in bad.items():
        engine.submit(request(name, spec))
    engine.submit(request("good", choice_grammar(["yes"])))
    said: list[int] = []
    while engine.has_work:
        said += [token for event in engine.step() for token in event.token_ids]
        for name, error in engine.take_refusals():
            spec = bad.pop(name)
            assert isinstance(error, RequestError)
            assert error.field == spec.field
            assert str(error).startswith(f"{spec.field} cannot be used as a {spec.kind} grammar: ")
            assert "project/cpp" not in str(error)
    assert not bad
    assert world.text(said[:-1]) == "yes"


def test_a_request_may_be_cancelled_while_its_grammar_is_compiled(world: World) -> None:
    engine = world.engine()
    engine.submit(request("a", choice_grammar(["yes"])))
    with pytest.raises(RequestError, match="still waiting"):
        engine.submit(request("a", None))
    assert engine.has_work
    assert engine.stats().scheduler.num_waiting == 1
    event = engine.cancel("a")
    assert event is not None
    assert event.finish_reason == "abort"
    assert not engine.has_work
    assert world.text(run(engine, [request("a", choice_grammar(["no"]))])["a"].token_ids[:-1]) == "no"


def test_others_do_not_wait_for_a_grammar(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from facet.sampling.grammar_compiler import GrammarCompiler

    compile_now = GrammarCompiler._compile
    is_released = False

    def slowly(self: GrammarCompiler, spec: GrammarSpec) -> Any:
        while not is_released:
            time.sleep(0.001)
        return compile_now(self, spec)

    monkeypatch.setattr(GrammarCompiler, "_compile", slowly)
    engine = world.engine()
    engine.submit(request("bound", choice_grammar(["yes"])))
    engine.submit(request("free", None, max_tokens=5, ignore_eos=True))
    events = []
    while not any(event.request_id == "free" and event.finish_reason for event in events):
        events += engine.step()
    assert {event.request_id for event in events} == {"free"}
    is_released = True
    while engine.has_work:
        events += engine.step()
    assert [event.finish_reason for event in events if event.request_id == "bound"][-1] == "stop"


def test_a_mistake_that_is_cheap_to_see_is_refused_at_once(world: World) -> None:
    engine = world.engine()
    with pytest.raises(RequestError, match="no end-of-sequence token"):
        engine.submit(replace(request("a", choice_grammar(["yes"])), eos_token_ids=()))
    with pytest.raises(RequestError, match="maximum context length is 512"):
        engine.submit(request("a", choice_grammar(["yes"]), max_tokens=600))
    with pytest.raises(RequestError, match="without a tokenizer"):
        make_engine(world.model).submit(request("a", choice_grammar(["yes"])))
    assert not engine.has_work


def test_settings_that_leave_no_token_are_an_error_of_that_request(world: World) -> None:
    contradiction = request("a", choice_grammar(["yes"]), allowed_token_ids=[world.tokenizer.token_to_id("n")])
    answers = run(world.engine(), [contradiction, request("b", choice_grammar(["yes"]))])
    assert answers["a"].finish_reason == "error"
    assert answers["a"].error is not None
    assert "grammar" in answers["a"].error
    assert answers["b"].finish_reason == "stop"


def test_an_ended_answer_says_nothing_more(world: World) -> None:
    answer = run(world.engine(), [request("a", choice_grammar(["yes"]), ignore_eos=True, max_tokens=30)])["a"]
    assert answer.finish_reason == "length"
    text = world.text([token for token in answer.token_ids if token not in EOS])
    assert text == "yes"


def test_a_refusal_found_late_is_an_answer_like_any_other(world: World) -> None:
    engine = world.engine()
    service = EngineService(engine, make_info(engine, str(world.folder)))
    answers: list[Any] = []
    service.handle(Submit(request("a", regex_grammar("(unclosed"))), answers.append)
    assert not answers
    while service.has_work:
        answers += service.step()
    (refused,) = answers
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.field, refused.is_capacity) == ("a", "structured_outputs", False)


def test_a_grammar_crosses_the_process_boundary(world: World) -> None:
    sent = Submit(request("a", world.tools("required", thinking=True)))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ToEngine) == sent
