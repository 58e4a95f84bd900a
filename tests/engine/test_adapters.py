"""Engines with adapters: each request gets its own, in any company, and what it gets is what training made."""

import contextlib
import json
import queue
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from facet.adapter import AdapterSource
from facet.config import EngineConfig, ModelConfig
from facet.engine.client import RemoteEngine
from facet.engine.engine import Engine
from facet.engine.messages import AdapterState, NewTokens, SleepState
from facet.engine.ranks import LeadingRunner, follow
from facet.errors import CapacityError, CheckpointError, ConfigError, RequestError
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.layers import adapted_weight
from facet.layers.rank_group import RankGroup
from facet.model.adapters import room_bytes
from facet.model.loader import LoadedModel, load_model
from facet.request import Request
from facet.runner.batch import make_batch_of
from facet.sampling_params import SamplingParams
from tests.engine.harness import Answer, make_engine, mixed_requests, run
from tests.model.paged_model import PagedSequence
from tests.quick_starts import quick_starts
from tests.ranks import on_ranks
from tests.tiny_adapters import TinyAdapter, adaptable_modules, expert_parameters, write_adapter
from tests.tiny_models import BASE_NAMES, TinyModel

TinyModels = Callable[[str], TinyModel]
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPT = [2, *range(40, 160, 3)]  # long enough to be cached
_EXPECTED: dict[str | None, list[int]] = {}  # what each adapter of `changing` answers to it
SERVED = "gemma4_e2b_small"


def load(folder: Path, *, arithmetic: Arithmetic = USUAL, **settings: object) -> LoadedModel:
    given = {"device": "cpu", "language_model_only": True, "max_model_len": 512, **settings}
    return load_model(ModelConfig(model=str(folder), **given), arithmetic=arithmetic)  # type: ignore[arg-type]


def engine_with(tiny: TinyModel, *adapters: TinyAdapter, **settings: object) -> Engine:
    """The adapters are called a, b, ..."""
    modules = tuple(f"{name}={adapter.folder}" for name, adapter in zip("abcdef", adapters, strict=False))
    loaded = load(tiny.folder, lora_modules=modules, **settings)
    return make_engine(loaded.model, bank=loaded.adapters)


def ask(request_id: str, token_ids: list[int], adapter: str | None = None, *, max_tokens: int = 6) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, prompt_logprobs=1, logprobs=1)
    return Request(request_id=request_id, prompt_token_ids=tuple(token_ids), sampling=sampling, adapter=adapter)


def with_adapters(requests: Sequence[Request]) -> list[Request]:
    """In turn without one, with a and with b."""
    return [replace(request, adapter=(None, "a", "b")[index % 3]) for index, request in enumerate(requests)]


def prompt_logprobs(answer: Answer) -> torch.Tensor:
    return torch.tensor([entry.logprobs[0] for entry in answer.prompt_logprobs])


@pytest.fixture(scope="module")
def two_adapters(tiny_model: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyAdapter, TinyAdapter]:
    """Beside all matrices, and beside some of attention with another rank."""
    tiny, folder = tiny_model(SERVED), tmp_path_factory.mktemp("adapters")
    everywhere = write_adapter(folder / "a", adaptable_modules(tiny), seed=1)
    some = write_adapter(folder / "b", adaptable_modules(tiny, "q_proj", "v_proj"), seed=2, rank=20, size=0.6)
    return everywhere, some


@pytest.mark.parametrize("name", BASE_NAMES)
def test_an_adapter_changes_what_merging_it_would(name: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    """Beside every matrix of every family, against transformers with the adapter merged into its weights."""
    tiny = tiny_model(name)
    adapter = write_adapter(tmp_path, adaptable_modules(tiny))
    engine = engine_with(tiny, adapter)
    prompt = tiny.prompt(2 * tiny.window + 3)
    answers = run(engine, [ask("with", prompt, "a"), ask("without", prompt)])
    merged = adapter.merged(tiny.oracle)
    for request_id, oracle in (("with", merged), ("without", tiny.oracle)):
        expected = functional.log_softmax(tiny.oracle_logits(prompt, oracle), dim=-1)
        ids = torch.tensor(prompt[1:])
        ours = prompt_logprobs(answers[request_id])
        torch.testing.assert_close(ours, expected[:-1].gather(1, ids[:, None])[:, 0], atol=2e-3, rtol=0)
    difference = (prompt_logprobs(answers["with"]) - prompt_logprobs(answers["without"])).abs().max()
    assert difference > 0.5, "the adapter is large enough to be seen"


@pytest.mark.parametrize("swaps_experts", [False, True])
def test_experts(swaps_experts: bool, tiny_model: TinyModels, tmp_path: Path) -> None:
    """PEFT's two matrices beside all experts of a layer, against transformers with the changes added to its own; in
    company, in captured steps, and bit for bit."""
    tiny = tiny_model("gemma4_26b_a4b_small")
    experts = expert_parameters(tiny)
    assert len(experts) == 2 * tiny.config["num_hidden_layers"]
    modules = adaptable_modules(tiny, "q_proj")
    adapter = write_adapter(tmp_path / "a", modules, experts=experts, swaps_experts=swaps_experts, size=0.6)
    other = write_adapter(tmp_path / "b", {}, experts=experts, seed=3, rank=20)
    assert not set(adapter.expert_changes) - set(experts)
    loaded = load(
        tiny.folder, arithmetic=BATCH_INVARIANT, lora_modules=tuple(f"{name}={tmp_path / name}" for name in "ab")
    )
    engine = make_engine(loaded.model, bank=loaded.adapters)
    assert engine.adapters[0].line.startswith("rank 4 beside q_proj, experts in 4 layers; logits of a probe change by")
    prompt = tiny.prompt(2 * tiny.window + 3)
    asked = [ask("a", prompt, "a"), ask("b", prompt[:9], "b"), ask("none", prompt)]
    answers = run(engine, asked)
    merged = {"a": adapter.merged(tiny.oracle), "b": other.merged(tiny.oracle), "none": tiny.oracle}
    for request in asked:
        ids = list(request.prompt_token_ids)
        expected = functional.log_softmax(tiny.oracle_logits(ids, merged[request.request_id]), dim=-1)
        ours = prompt_logprobs(answers[request.request_id])
        theirs = expected[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
    assert (prompt_logprobs(answers["a"]) - prompt_logprobs(answers["none"])).abs().max() > 0.5
    alone = make_engine(loaded.model, bank=loaded.adapters, enable_prefix_caching=False, graph_sizes=(1, 4))
    for request in asked:
        answer = run(alone, [request])[request.request_id]
        assert answer.token_ids == answers[request.request_id].token_ids
        assert answer.prompt_logprobs == answers[request.request_id].prompt_logprobs


def test_quantized_experts_have_no_adapters(tiny_model: TinyModels, tmp_path: Path) -> None:
    tiny = tiny_model("gemma4_26b_a4b_small")
    write_adapter(tmp_path, {}, experts=expert_parameters(tiny))
    with pytest.raises(ConfigError, match="need experts that are neither quantized nor divided"):
        load(tiny.folder, lora_modules=(f"a={tmp_path}",), quantization="int8")


def test_rows_keep_their_adapters_where_others_stop(tiny_model: TinyModels, tmp_path: Path) -> None:
    """Behind the last layer, streams are merged by matrices that have adapters, too: of the rows that are left."""
    tiny = tiny_model("gemma3n")
    write_adapter(tmp_path, adaptable_modules(tiny))
    model = load(tiny.folder, lora_modules=(f"a={tmp_path}",)).model
    prompt, hidden = tiny.prompt(9), []
    for skip_upper in (False, True):
        sequence = PagedSequence(model, len(prompt))
        batch = make_batch_of([sequence.rows(prompt, 2)], torch.device("cpu"), skip_upper=skip_upper)
        adapters = torch.ones(1, dtype=torch.int32)
        upper_rows = None if batch.upper_rows is None else replace(batch.upper_rows, seat_adapters=adapters)
        batch = replace(batch, rows=replace(batch.rows, seat_adapters=adapters), upper_rows=upper_rows)
        with torch.inference_mode():
            hidden.append(model(batch, sequence.arena))
    torch.testing.assert_close(*hidden, atol=1e-4, rtol=1e-4)


def test_any_company_changes_nothing(tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]) -> None:
    """Requests of two adapters and of none, in chunks, with penalties and preemptions."""
    tiny = tiny_model(SERVED)
    modules = tuple(f"{name}={adapter.folder}" for name, adapter in zip("ab", two_adapters, strict=True))
    loaded = load(tiny.folder, arithmetic=BATCH_INVARIANT, lora_modules=modules)
    requests = with_adapters(mixed_requests(tiny.window, 490, count=15, seed=5))
    company = make_engine(loaded.model, bank=loaded.adapters, num_blocks=40, max_num_seqs=9, max_num_batched_tokens=24)
    together = run(company, requests)
    assert company.stats().scheduler.num_preemptions > 0
    alone = make_engine(loaded.model, bank=loaded.adapters, enable_prefix_caching=False, overlapped=False)
    for request in requests:
        answer = run(alone, [replace(request, priority=0)])[request.request_id]
        got = together[request.request_id]
        assert got.token_ids == answer.token_ids
        assert got.logprobs == answer.logprobs
        assert got.prompt_logprobs == answer.prompt_logprobs


def test_cached_prefixes_are_of_one_adapter(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]
) -> None:
    tiny = tiny_model(SERVED)
    engine = engine_with(tiny, *two_adapters)
    prompt = tiny.prompt(60)
    plain = replace(ask("", prompt).sampling, prompt_logprobs=None)

    def cached(request_id: str, adapter: str | None) -> int:
        request = replace(ask(request_id, prompt, adapter), sampling=plain)
        return run(engine, [request])[request_id].num_cached_tokens

    assert [cached("1", "a"), cached("2", None), cached("3", "b")] == [0, 0, 0]
    assert min(cached("4", "a"), cached("5", None), cached("6", "b")) > 0


def test_no_salt_reads_as_an_adapter(tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]) -> None:
    """A client that knows an adapter's bytes cannot put prefixes where the adapter's requests look for theirs."""
    tiny = tiny_model(SERVED)
    engine = engine_with(tiny, *two_adapters)
    adapters = engine._adapters
    assert adapters is not None
    key, prompt = adapters.place_of("a").key, tiny.prompt(60)
    for number, salt in enumerate((f"adapter {key} ", f"adapter {key} None", f"adapter {key} salt s", "None", "")):
        for adapter, cache_salt in ((None, salt), ("a", None), ("a", "s")):
            request = replace(ask(f"{number}", prompt, adapter), sampling=GREEDY, cache_salt=cache_salt)
            answer = run(engine, [request])[f"{number}"]
            assert answer.num_cached_tokens == 0 or (adapter is not None and number > 0)
        engine.reset_prefix_cache() if number == 0 else None


def test_the_same_adapter_under_two_names_shares_prefixes(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]
) -> None:
    tiny = tiny_model(SERVED)
    engine = engine_with(tiny, two_adapters[1], two_adapters[1])
    prompt = tiny.prompt(60)
    requests = [replace(ask(name, prompt, name), sampling=SamplingParams(max_tokens=1)) for name in "ab"]
    hits = [run(engine, [request])[request.request_id].num_cached_tokens for request in requests]
    assert hits[0] == 0 < hits[1]


def test_captured_steps(tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]) -> None:
    """Graphs and pieces find adapters by seats, padding rows included."""
    tiny = tiny_model(SERVED)
    modules = tuple(f"{name}={adapter.folder}" for name, adapter in zip("ab", two_adapters, strict=True))
    loaded = load(tiny.folder, lora_modules=modules)
    requests = [ask(str(index), tiny.prompt(5 + 4 * index, index), (None, "a", "b")[index % 3]) for index in range(7)]
    requests = [replace(request, sampling=replace(request.sampling, prompt_logprobs=None)) for request in requests]
    eager = run(make_engine(loaded.model, bank=loaded.adapters), requests)
    captured = run(
        make_engine(loaded.model, bank=loaded.adapters, graph_sizes=(1, 3, 8), piece_sizes=(16, 64)), requests
    )
    assert {name: answer.token_ids for name, answer in captured.items()} == {
        name: answer.token_ids for name, answer in eager.items()
    }


@pytest.mark.parametrize("sizes", [{}, {"graph_sizes": (1, 4), "piece_sizes": (16, 64)}])
def test_steps_of_no_adapter_add_nothing(
    sizes: dict[str, tuple[int, ...]],
    tiny_model: TinyModels,
    two_adapters: tuple[TinyAdapter, TinyAdapter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seats that requests with adapters have left included."""
    tiny = tiny_model(SERVED)
    loaded = load(tiny.folder, lora_modules=(f"a={two_adapters[0].folder}",))
    engine = make_engine(loaded.model, bank=loaded.adapters, max_num_seqs=2, **sizes)
    begun = Mock(wraps=adapted_weight.begin_addition)
    monkeypatch.setattr(adapted_weight, "begin_addition", begun)
    prompt, counts = tiny.prompt(20), []
    for names in ((None,), ("a", None), (None, None)):
        begun.reset_mock()
        run(engine, [replace(ask(str(index), prompt, name), sampling=GREEDY) for index, name in enumerate(names)])
        counts.append(begun.call_count)
    assert [count > 0 for count in counts] == [False, True, False]


def test_loaded_and_unloaded_while_requests_run(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]
) -> None:
    tiny = tiny_model(SERVED)
    fixed = engine_with(tiny, *two_adapters)
    prompt = tiny.prompt(30)
    expected = {name: run(fixed, [ask(name, prompt, name)])[name].token_ids for name in "ab"}
    assert expected["a"] != expected["b"]

    endings = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "per_layer_input_gate")
    endings += ("per_layer_projection", "per_layer_model_projection")
    loaded = load(tiny.folder, enable_lora=True, max_loras=1, max_lora_rank=20, lora_target_modules=endings)
    engine = make_engine(loaded.model, bank=loaded.adapters)
    with pytest.raises(RequestError, match=r"There is no adapter 'a' here. There are none"):
        engine.submit(ask("early", prompt, "a"))
    engine.load_adapter(AdapterSource("a", str(two_adapters[0].folder)))
    (info,) = engine.adapters
    assert "logits of a probe change by 0." in info.line
    with pytest.raises(ConfigError, match="a is loaded already"):
        engine.load_adapter(AdapterSource("a", str(two_adapters[1].folder)))
    with pytest.raises(CapacityError, match="no room for the adapter b: there is room for 1, and all of it is taken"):
        engine.load_adapter(AdapterSource("b", str(two_adapters[1].folder)))

    running = ask("running", prompt, "a")
    engine.submit(running)
    tokens = [token for _ in range(3) for event in engine.step() for token in event.token_ids]
    engine.unload_adapter("a")
    with pytest.raises(RequestError, match="There is no adapter 'a'"):
        engine.submit(ask("late", prompt, "a"))
    with pytest.raises(CapacityError, match="requests with adapters that were unloaded are still running"):
        engine.load_adapter(AdapterSource("b", str(two_adapters[1].folder)))
    while engine.has_work:
        tokens += [token for event in engine.step() for token in event.token_ids]
    assert tokens == expected["a"]

    # The other takes its place under its name; nothing of the first is left, not in the cache either.
    engine.load_adapter(AdapterSource("a", str(two_adapters[1].folder)))
    assert run(engine, [ask("b", prompt, "a")])["b"].token_ids == expected["b"]
    engine.unload_adapter("a")
    with pytest.raises(RequestError, match="no adapter 'a'"):
        engine.unload_adapter("a")


@pytest.fixture(scope="module")
def changing(tiny_model: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, dict[str, Path]]:
    """An engine with room for two adapters, and three to load under any name."""
    tiny, folder = tiny_model(SERVED), tmp_path_factory.mktemp("changing")
    for index, name in enumerate("xyz"):
        write_adapter(folder / name, adaptable_modules(tiny, "q_proj", "down_proj"), seed=index, size=0.6)
    loaded = load(tiny.folder, enable_lora=True, max_loras=2, lora_target_modules=("q_proj", "down_proj"))
    return make_engine(loaded.model, bank=loaded.adapters, max_num_seqs=4), {name: folder / name for name in "xyz"}


# (name, adapter): the adapter is loaded under a name that may have had another. A name alone: something is asked of it.
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from("mn"), st.sampled_from("xyz")), st.sampled_from(["m", "n", "", "step", "step"])
)


@settings(max_examples=15)
@given(st.lists(OPERATIONS, min_size=6, max_size=30))
def test_names_come_and_go_while_requests_run(
    changing: tuple[Engine, dict[str, Path]], operations: list[tuple[str, str] | str]
) -> None:
    """Whatever a name means later, a request is answered by what it meant when it was asked."""
    engine, folders = changing
    meant: dict[str, str] = {}  # by name: the adapter that is loaded under it
    asked: dict[str, str | None] = {}  # by request
    answers: dict[str, list[int]] = {}

    def step() -> None:
        for event in engine.step():
            answers[event.request_id] += event.token_ids

    for operation in operations:
        if isinstance(operation, tuple):
            name, adapter = operation
            if name in meant:
                with pytest.raises(ConfigError, match="is loaded already"):
                    engine.load_adapter(AdapterSource(name, str(folders[adapter])))
                engine.unload_adapter(name)
                del meant[name]
            try:
                engine.load_adapter(AdapterSource(name, str(folders[adapter])))
                meant[name] = adapter
            except CapacityError:
                assert engine.has_work, "only requests that still run can hold a place"
        elif operation == "step":
            step()
        elif operation and operation not in meant:
            with pytest.raises(RequestError, match="There is no adapter"):
                engine.submit(ask("early", PROMPT, operation))
        else:
            request_id = str(len(asked))
            engine.submit(replace(ask(request_id, PROMPT, operation or None), sampling=GREEDY))
            answers[request_id], asked[request_id] = [], meant.get(operation)
        assert {info.name: Path(info.path).name for info in engine.adapters} == meant
    for name in meant:
        engine.unload_adapter(name)
    while engine.has_work:
        step()
    for adapter in {*asked.values()}:
        if adapter not in _EXPECTED:
            if adapter is not None:
                engine.load_adapter(AdapterSource("alone", str(folders[adapter])))
            request = replace(ask("alone", PROMPT, adapter and "alone", max_tokens=4), sampling=GREEDY)
            _EXPECTED[adapter] = run(engine, [request])["alone"].token_ids
            if adapter is not None:
                engine.unload_adapter("alone")
    assert answers == {request_id: _EXPECTED[adapter] for request_id, adapter in asked.items()}
    assert len({tuple(tokens) for tokens in _EXPECTED.values()}) == len(_EXPECTED), "adapters can be told apart"


def test_room_is_planned_as_it_is_taken(tiny_model: TinyModels) -> None:
    loaded = load(tiny_model(SERVED).folder, enable_lora=True, max_loras=3, max_lora_rank=40)
    assert loaded.adapters is not None
    assert room_bytes(loaded.adapters.room, loaded.spec, 4) == loaded.adapters.num_bytes > 0


def test_one_adapter_takes_the_place_of_another(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter], tmp_path: Path
) -> None:
    """What was there answers until the other does, and stays if nothing comes of it and a place is to spare."""
    tiny = tiny_model(SERVED)
    first, second = (AdapterSource("a", str(adapter.folder), replaces=True) for adapter in two_adapters)
    expected = run(engine_with(tiny, *two_adapters), [ask(name, tiny.prompt(30), name) for name in "ab"])
    broken = write_adapter(tmp_path, adaptable_modules(tiny, "q_proj"), size=float("nan"))
    for num_places in (1, 2):
        loaded = load(tiny.folder, enable_lora=True, max_loras=num_places, max_lora_rank=20)
        engine = make_engine(loaded.model, bank=loaded.adapters)
        engine.load_adapter(first)
        engine.submit(ask("running", tiny.prompt(30), "a"))
        tokens = [token for _ in range(3) for event in engine.step() for token in event.token_ids]
        if num_places == 1:
            with pytest.raises(CapacityError, match="all of it is taken"):
                engine.load_adapter(second)
        else:
            engine.load_adapter(second)
        assert len(engine.adapters) == 1
        while engine.has_work:
            tokens += [token for event in engine.step() for token in event.token_ids]
        assert tokens == expected["a"].token_ids
        engine.load_adapter(second)
        assert run(engine, [ask("b", tiny.prompt(30), "a")])["b"].token_ids == expected["b"].token_ids
        with pytest.raises(CheckpointError, match="not finite"):
            engine.load_adapter(AdapterSource("a", str(broken.folder), replaces=True))
        assert len(engine.adapters) == num_places - 1


def test_what_is_read_again_is_as_the_files_are_now(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter], tmp_path: Path
) -> None:
    tiny = tiny_model(SERVED)
    folder = Path(shutil.copytree(two_adapters[1].folder, tmp_path / "a"))
    loaded = load(tiny.folder, lora_modules=(f"a={folder}",))
    engine = make_engine(loaded.model, bank=loaded.adapters)
    adapters, before = engine._adapters, engine.adapters[0].line
    assert adapters is not None
    key = adapters.place_of("a").key
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 1e-30}))
    adapters.load_again(loaded.spec)
    assert adapters.place_of("a").key != key
    assert before.endswith("of their size")
    assert engine.adapters[0].line.endswith("by less than they are rounded to")


def test_an_adapter_that_was_never_trained_says_so(tiny_model: TinyModels, tmp_path: Path) -> None:
    tiny = tiny_model(SERVED)
    engine = engine_with(tiny, write_adapter(tmp_path, adaptable_modules(tiny, "q_proj"), size=0.0))
    (info,) = engine.adapters
    assert info.line.endswith("it changes nothing: one of the two matrices of each pair is zero, as before training")


def test_numbers_that_are_not_finite_are_refused_and_leave_nothing(tiny_model: TinyModels, tmp_path: Path) -> None:
    tiny = tiny_model(SERVED)
    good = write_adapter(tmp_path / "good", adaptable_modules(tiny, "q_proj"))
    bad = write_adapter(tmp_path / "bad", adaptable_modules(tiny, "q_proj"), size=float("nan"))
    huge = write_adapter(tmp_path / "huge", adaptable_modules(tiny, "gate_proj", "up_proj"), size=1e30)
    scaled = write_adapter(
        tmp_path / "scaled", adaptable_modules(tiny, "q_proj"), size=1e10, alpha_pattern={"q_proj": 1e29}
    )
    endings = ("q_proj", "gate_proj", "up_proj")
    loaded = load(tiny.folder, lora_modules=(f"a={good.folder}",), max_loras=2, lora_target_modules=endings)
    engine = make_engine(loaded.model, bank=loaded.adapters)
    prompt = tiny.prompt(20)
    before = run(engine, [ask("1", prompt, "a"), ask("2", prompt)])
    with pytest.raises(CheckpointError, match="not finite"):
        engine.load_adapter(AdapterSource("bad", str(bad.folder)))
    with pytest.raises(CheckpointError, match="not finite"):
        engine.load_adapter(AdapterSource("scaled", str(scaled.folder)))
    with pytest.raises(CheckpointError, match="makes logits that are not finite"):
        engine.load_adapter(AdapterSource("huge", str(huge.folder)))
    assert [info.name for info in engine.adapters] == ["a"]
    after = run(engine, [ask("1", prompt, "a"), ask("2", prompt)])
    assert {name: answer.token_ids for name, answer in after.items()} == {
        name: answer.token_ids for name, answer in before.items()
    }


def test_engines_without_room_refuse(tiny_model: TinyModels) -> None:
    engine = make_engine(load(tiny_model(SERVED).folder).model)
    assert engine.adapters == ()
    with pytest.raises(RequestError, match="started without --enable-lora or --lora-modules"):
        engine.submit(ask("1", [2, 3], "a"))
    with pytest.raises(RequestError, match="There is no room for the adapter 'a'"):
        engine.load_adapter(AdapterSource("a", "/nowhere"))


def test_ranks_have_shares_of_every_matrix(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter], tmp_path: Path
) -> None:
    """Beside cut inputs `down` is cut, beside cut outputs `up`; each rank reads its own, at the start and later. What
    one of them cannot read none has."""
    tiny = tiny_model(SERVED)
    requests = [ask(str(index), tiny.prompt(9 + index), (None, "a", "b")[index]) for index in range(3)]
    expected = run(engine_with(tiny, *two_adapters), requests)
    steps: queue.Queue[bytes | None] = queue.Queue()
    broken = write_adapter(tmp_path, adaptable_modules(tiny, "q_proj"), size=float("nan"))

    def answers(group: RankGroup) -> dict[str, Answer]:
        first = (f"a={two_adapters[0].folder}",)
        given = dict(model=str(tiny.folder), device="cpu", language_model_only=True, max_model_len=512)
        config = ModelConfig(**given, lora_modules=first, max_loras=2, max_lora_rank=20)  # type: ignore[arg-type]
        loaded = load_model(config, group=group)
        engine = make_engine(loaded.model, bank=loaded.adapters)
        adapters = engine._adapters
        assert adapters is not None
        if not group.rank.plans:
            follow(engine.runner, steps.get, adapters)  # type: ignore[arg-type]
            return {}
        leading = LeadingRunner(engine.runner, steps.put)  # type: ignore[arg-type]
        adapters.lead(leading.tell_of_adapter)
        whole = Engine(leading, engine.settings, adapters=adapters)
        try:
            with pytest.raises(CheckpointError, match="not finite"):
                whole.load_adapter(AdapterSource("b", str(broken.folder)))
            whole.load_adapter(AdapterSource("b", str(two_adapters[1].folder)))
            assert all("change by 0." in info.line for info in whole.adapters)
            return run(whole, requests)
        finally:
            steps.put(None)

    found, _ = on_ranks(2, answers)
    for name, answer in found.items():
        assert answer.token_ids == expected[name].token_ids
        torch.testing.assert_close(prompt_logprobs(answer), prompt_logprobs(expected[name]), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("quantization", "share"), [("int8", 0.5), ("fp8", 0.5), ("int4", 0.8)])
def test_beside_quantized_weights(
    quantization: str, share: float, tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter]
) -> None:
    """What adapters add is added to products of whatever kind; rows without one are as they were without adapters."""
    tiny = tiny_model(SERVED)
    with_adapters = engine_with(tiny, *two_adapters, quantization=quantization)
    prompt = tiny.prompt(20)
    answers = run(with_adapters, [ask("none", prompt), ask("a", prompt, "a")])
    plain = run(make_engine(load(tiny.folder, quantization=quantization).model), [ask("none", prompt)])
    exact = run(engine_with(tiny, *two_adapters), [ask("a", prompt, "a"), ask("none", prompt)])
    torch.testing.assert_close(prompt_logprobs(answers["none"]), prompt_logprobs(plain["none"]), atol=2e-2, rtol=0)
    # As far from the unquantized model with the adapter as quantization alone takes it, and not as far as the adapter.
    shift = (prompt_logprobs(exact["a"]) - prompt_logprobs(exact["none"])).abs().mean()
    assert (prompt_logprobs(answers["a"]) - prompt_logprobs(exact["a"])).abs().mean() < shift * share


def test_an_engine_in_another_process_says_what_it_loaded(
    tiny_model: TinyModels, two_adapters: tuple[TinyAdapter, TinyAdapter], tmp_path: Path
) -> None:
    tiny = tiny_model(SERVED)
    copies = Path(shutil.copytree(two_adapters[1].folder, tmp_path / "copies"))
    config = EngineConfig(
        model=str(tiny.folder),
        max_model_len=512,
        kv_cache_memory_bytes=1 << 20,
        device="cpu",
        language_model_only=True,
        lora_modules=(f"a={two_adapters[0].folder}",),
        max_loras=2,
        max_lora_rank=20,
        enable_sleep_mode=True,
    )
    prompt = tiny.prompt(20)
    asked = [ask(str(name), prompt, name) for name in ("a", "b", None)]
    expected = run(engine_with(tiny, *two_adapters), asked)

    def tokens(engine: RemoteEngine, name: str | None) -> list[int]:
        engine.submit(replace(ask(str(name), prompt, name), sampling=SamplingParams(temperature=0.0, max_tokens=6)))
        found: list[int] = []
        while True:
            for message in engine.receive():
                assert isinstance(message, NewTokens), message
                found += message.token_ids
                if message.finish_reason is not None:
                    return found

    def told(engine: RemoteEngine) -> AdapterState | SleepState:
        (message,) = engine.receive()
        assert isinstance(message, AdapterState | SleepState)
        return message

    with quick_starts(), contextlib.closing(RemoteEngine(config)) as engine:
        assert [info.name for info in engine.info.adapters] == ["a"]
        assert any(
            line.startswith("Adapters: room for 2 up to rank 20 beside per_layer_model_projection, q_proj,")
            for line in engine.info.lines
        )
        assert any(
            line.startswith("Adapter a: rank 4 beside per_layer_model_projection, q_proj, ")
            for line in engine.info.lines
        )
        engine.load_adapter(AdapterSource("b", str(copies)))
        state = told(engine)
        assert isinstance(state, AdapterState)
        assert ([info.name for info in state.adapters], state.error) == (["a", "b"], None)
        engine.load_adapter(AdapterSource("b", "/nowhere"))
        assert "b is loaded already" in (told(engine).error or "")
        for level in (1, 2):  # asleep at level 2, adapters are dropped as weights are, and read again
            engine.sleep(level)
            state = told(engine)
            assert isinstance(state, SleepState)
            assert (state.is_asleep, state.error, len(state.adapters)) == (True, None, 2)
            engine.wake_up()
            assert told(engine) == SleepState(False, None, state.adapters)
            assert [tokens(engine, name) for name in "ab"] == [expected[name].token_ids for name in "ab"]
        engine.unload_adapter("a")
        assert [info.name for info in told(engine).adapters] == ["b"]
        engine.sleep(2)
        told(engine)
        (copies / "adapter_model.safetensors").unlink()
        engine.wake_up()
        state = told(engine)
        assert isinstance(state, SleepState)
        assert (state.is_asleep, state.adapters) == (False, ())
        assert "The model is awake, but without adapters that could not be read: b (" in (state.error or "")
        assert tokens(engine, None) == expected["None"].token_ids
